"""A start state that cannot be made is made anew, replaced by a replay, or reported with a sentence."""

from __future__ import annotations

import asyncio

import pytest

from ale.errors import AleError, ConfigError, SandboxError

from .conftest import RL, Bench

pytestmark = pytest.mark.usefixtures("quiet")


async def test_a_walk_that_takes_too_long_is_given_up(bench: Bench) -> None:
    bench.provider.stand.set()
    expert = await bench.expert(["put a 1", "stand", "put b 1"])
    bench.provider.stand.clear()
    done = await bench.roll(expert, 2, timeout_s=0.5)
    assert done.failure is not None, "as its replay is: the policy's turn never came"
    assert done.failure.kind == "replay"
    assert "timeout_s include replayed chunks" in done.failure.message
    assert "rollout.timeout_s=0.5" in bench.events("start_states_given_up")[0]["reason"]
    assert (await bench.roll(expert, 1)).failure is None, "what comes before is forked"
    assert bench.events("start_states_made")[-1]["starts"] == [1]


async def test_a_lost_sandbox_fails_the_rollout_that_walked_and_the_next_one_walks_again(bench: Bench) -> None:
    expert = await bench.expert(["put a 1", "die", "put b 1"])
    bench.provider.deaths = 1
    done = await asyncio.gather(*(bench.roll(expert, 3) for _ in range(3)))
    failures = [t.failure for t in done]
    assert failures[1:] == [None, None]
    assert failures[0] is not None
    assert (failures[0].kind, failures[0].retryable) == ("sandbox", True)
    assert bench.events("start_states_given_up") == []
    assert bench.provider.made == 1


async def test_a_start_that_was_kept_is_used_though_the_walk_failed_later(bench: Bench) -> None:
    expert = await bench.expert(["put a 1", "die", "put b 1"])
    bench.provider.deaths = 1
    bench.episodes().expect([bench.request(expert, 3)], RL)
    assert (await bench.roll(expert, 1)).failure is None
    assert bench.events("start_states_made")[0]["starts"] == [1]


@pytest.mark.parametrize(("error", "kind"), [(SandboxError("disk full"), "sandbox"), (None, None)])
async def test_a_snapshot_that_cannot_be_made_is_made_anew_or_given_up(
    bench: Bench, error: Exception | None, kind: str | None
) -> None:
    expert = await bench.expert()
    bench.provider.no_snapshots = [error or AleError("never")]
    done = [await bench.roll(expert, 2) for _ in range(2)]
    assert [t.failure and t.failure.kind for t in done] == [kind, None]
    assert bench.provider.made == (1 if error else 0)
    assert len(bench.events("start_states_given_up")) == (0 if error else 1)


async def test_a_snapshot_that_a_setting_forbids_ends_the_run_with_its_sentence(bench: Bench) -> None:
    expert = await bench.expert()
    bench.provider.no_snapshots = [ConfigError("Set needs.resources.disk_mib to null.")]
    with pytest.raises(ConfigError, match=r"needs\.resources\.disk_mib"):
        await bench.roll(expert, 2)


async def test_one_who_waits_walks_where_the_walker_is_cancelled(bench: Bench) -> None:
    bench.provider.stand.set()
    expert = await bench.expert(["put a 1", "stand"])
    bench.provider.stand.clear()
    walker = asyncio.create_task(bench.roll(expert, 2))
    await bench.until_run("stand")
    waiting = asyncio.create_task(bench.roll(expert, 2))
    await asyncio.sleep(0)
    walker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await walker
    bench.provider.stand.set()
    assert (await waiting).failure is None
    assert bench.commands().count("stand") == 2


async def test_a_state_that_somebody_removed_fails_one_rollout_and_is_made_again(bench: Bench) -> None:
    expert = await bench.expert()
    assert (await bench.roll(expert, 2)).failure is None
    bench.provider.kept.clear()
    done = [await bench.roll(expert, 2) for _ in range(2)]
    assert [t.failure and (t.failure.kind, t.failure.retryable) for t in done] == [("sandbox", True), None]
    assert bench.provider.made == 2
