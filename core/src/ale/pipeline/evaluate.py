"""Held-out evaluation: every episode starts at the beginning of its task, with the policy as it is now."""

from __future__ import annotations

import itertools
from collections import defaultdict

from ale.errors import AleError
from ale.pipeline.workbench import Workbench
from ale.rollout.episode import StageInfo
from ale.specs.algorithm import RolloutRequest

EVAL_STAGE = "eval"


async def evaluate(bench: Workbench, label: str, step: int) -> float:
    """Return the success rate on the held-out tasks, which are repeated if there are fewer than episodes; it is stored
    with other metrics of the stage `eval` at `step`.

    `label` (such as `after_sft`) is its name in the summary. Rejected episodes (after an infrastructure fault, for
    example) are made again; one whose last try is rejected too is left out of the rate.
    """
    config = bench.config.eval
    tasks = list(itertools.islice(bench.take_tasks(config.split), config.episodes))
    bench.progress.stage(f"evaluation {label}", len(tasks))
    requests = [
        RolloutRequest(task, f"eval.{i}", bench.config.seed * 1_000_003 + 500_009 + i) for i, task in enumerate(tasks)
    ]
    with bench.stopwatch("evaluation"):
        done = await bench.rollouts.run(requests, StageInfo(EVAL_STAGE, step, config.split, config.temperature))
    if not done:
        raise AleError(
            f"No held-out episode could be run: {bench.store.reasons(EVAL_STAGE, step)}. The trajectories of the run "
            "say more."
        )
    success = sum(t.passed for t in done) / len(done)
    by_tag: dict[str, list[bool]] = defaultdict(list)
    for t in done:
        for tag in t.groups_for_success:
            by_tag[tag].append(t.passed)
    metrics = {"success": success, "episodes": len(done), "chunks": sum(len(t.chunks) for t in done) / len(done)}
    metrics |= bench.rollouts.metrics(EVAL_STAGE, step)
    metrics |= {f"success/{tag}": sum(v) / len(v) for tag, v in by_tag.items()}
    bench.finish_step(EVAL_STAGE, step, metrics)
    bench.evaluations[label] = {"success": success, "episodes": len(done), "step": step}
    bench.progress.numbers(heldout=success)
    bench.progress.note(f"held-out success {label.replace('_', ' ')}: {success:.2f} ({len(done)} episodes)")
    return success
