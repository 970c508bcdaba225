"""Where an agent or its sandbox does not repeat what the expert's did, the start diverges or is replayed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .conftest import Bench

pytestmark = pytest.mark.usefixtures("quiet")


async def test_of_other_results_than_the_experts_no_state_is_kept(bench: Bench) -> None:
    expert = await bench.expert(["put a 1", "count", "put b 1"])
    await bench.provider.remove("box-1")
    bench.provider.ran.append(("another", "before"))
    done = [await bench.roll(expert, start) for start in (1, 2, 3)]
    assert [t.failure and t.failure.kind for t in done] == [None, "replay", "replay"]
    (event,) = bench.events("start_states_given_up")
    assert event["start"] == 2
    assert "where it had answered" in event["reason"]


@pytest.mark.parametrize("swallows", [False, True])
async def test_an_agent_that_acts_otherwise_in_a_fork_diverges_once_and_is_replayed_then(
    bench: Bench, swallows: bool
) -> None:
    expert = await bench.expert()
    bench.hands.before, bench.hands.swallows = "key", swallows
    done = [await bench.roll(expert, 2) for _ in range(3)]
    assert [t.failure and t.failure.kind for t in done] == ["replay", None, None]
    assert done[0].failure is not None
    assert "called the sandbox with exec 'put key 1'" in done[0].failure.message
    (event,) = bench.events("start_states_given_up")
    assert event["start"] == 0


async def test_an_agent_that_swallows_what_it_did_otherwise_and_then_ends_has_diverged(bench: Bench) -> None:
    expert = await bench.expert()
    assert (await bench.roll(expert, 2)).failure is None
    bench.hands.after, bench.hands.swallows, bench.hands.most = "late key", True, 2
    done = await bench.roll(expert, 2)
    assert done.failure is not None
    assert (done.failure.kind, len(done.chunks)) == ("replay", 2)


@pytest.mark.parametrize(
    ("after", "reason"),
    [("stats", "its agent does more than run commands and move files"), ("none", "more than 0 MiB")],
)
async def test_what_cannot_be_recorded_is_replayed(
    bench: Bench, after: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if after == "none":
        monkeypatch.setattr("ale_train.starts.recording_sandbox.MOST_BYTES", 0)
    expert = await bench.expert()
    bench.hands.after = after
    done = [await bench.roll(expert, start) for start in (1, 4, 4)]
    assert [t.failure for t in done] == [None] * 3
    (event,) = bench.events("start_states_given_up")
    assert reason in event["reason"]
    assert event["start"] == (1 if after == "stats" else 3)


async def test_a_scaffold_that_crashes_on_the_walk_crashes_in_the_replay(bench: Bench) -> None:
    expert = await bench.expert()
    broken = replace(expert.sequences[0].messages[2].tool_calls[0], arguments='{"cmd": ""}')
    messages = list(expert.sequences[0].messages)
    messages[2] = replace(messages[2], tool_calls=(broken,))
    line = replace(expert.sequences[0], messages=tuple(messages), token_ids=(0,) * len(expert.sequences[0].token_ids))
    done = await bench.roll(replace(expert, sequences=(line,)), 2)
    assert done.failure is not None
    assert done.failure.message == "The scaffold crashed: KeyError: 'command'"
    assert "the scaffold crashed" in bench.events("start_states_given_up")[0]["reason"]
