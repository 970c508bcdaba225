"""Chunks of the expert are imitated up to the next start that succeeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .conftest import TASKS, Build, Course, expert


def test_a_start_that_some_group_of_the_step_succeeded_from_is_mastered(build: Build) -> None:
    """One task, several groups a step, as a run over few tasks has them."""
    run = Course(build, {"experts": {}, "start": "parallel", "group_size": 3}, {"a": [expert(build, "path", 3)]})
    twice = [TASKS[0], TASKS[0]]
    run.go(lambda r: r.start_chunk == 2 and r.group.split(".")[1] == "0", tasks=twice)
    requests = run.plan(twice)
    failed = [
        replace(run.build(f"f{i}", 0.0, [1], group=r.group), task_id="a", step=2, start_chunk=r.start_chunk)
        for i, r in enumerate(requests)
        if r.start_chunk == 0
    ]
    batch = run.ipa.batch(failed)
    assert batch is not None
    assert int((~batch.chunks.sampled).sum()) == 2 * 2, "each group imitates up to the start that is mastered"


def test_imitation_reaches_to_the_next_start_that_succeeds_so_that_no_crucial_chunk_lies_between_anchors(
    course: Callable[..., Course],
) -> None:
    run = course(chunks=10)

    def reach() -> dict[int, int]:
        return {p.start: p.imitated for p in run.ipa._curriculum.placed.values() if p.step == run.step}

    run.go(lambda r: r.start_chunk == 9)
    assert reach() == {0: 1, 3: 4, 6: 7, 9: 10}, "nothing is known yet"
    run.go(lambda r: r.start_chunk >= 6)
    assert reach() == {0: 9, 3: 9, 6: 9, 9: 10}
    run.go(lambda r: r.start_chunk == 9)
    assert reach() == {0: 6, 3: 6, 6: 9, 9: 10}
    run.go(lambda r: False)
    assert reach() == {0: 9, 3: 9, 6: 9, 9: 10}, "what succeeded once and fails now is no success"
