"""These tests check the pool with real sandboxes and in whole runs; libs/sandbox_pool/tests check faults in memory."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from ale_command import SCRIPTED, ale, summary_of
from kit import run_kit_here
from support.fake_packages import write_package
from support.sandbox_providers import must_answer

from ale.config.pool import PoolConfig
from ale.errors import SandboxError
from ale.registry.drivers import build_driver
from ale.rollout.sandbox_pool.pool import SandboxPool
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import TESTS, Resources, SandboxSpec
from ale.store.run_store import RunStore

RunFile = Callable[[str], Path]
PROVIDERS = [
    pytest.param("local", marks=pytest.mark.bwrap),
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("podman", marks=pytest.mark.podman),
]
FIND = "find . ~ /tmp /var/tmp /dev/shm -xdev -mindepth 1 2>/dev/null; set -- /proc/[0-9]*; echo $# $LEFT$OTHER"
LITTER = (
    "mkdir -p $N ~/$N /tmp/$N; echo $N > $N/f; echo $N > /dev/shm/$N; chmod 000 $N; (setsid sleep 1000 >/dev/null 2>&1 "
    "&); true",
    "while :; do echo $N >> log; done & sleep 0.05",
    "rm -rf .[!.]* * ~/* /tmp/*; ln -s / all",
)
POOLED = """
from ale.rollout.sandbox_pool.pool import SandboxPool
from ale.config.pool import PoolConfig
from ale.specs.driver import Driver
from ale_local import LocalSandboxProvider
class Fixed(Driver, SandboxPool):
    api_version = LocalSandboxProvider.api_version
    capabilities = LocalSandboxProvider.capabilities
    sandbox_type = LocalSandboxProvider.sandbox_type
    Config = LocalSandboxProvider.Config
    def __init__(self, config, context):
        settings = PoolConfig(max_uses=1, max_sandboxes=12, starts_at_once=3)
        Driver.__init__(self, config, context)
        SandboxPool.__init__(self, LocalSandboxProvider(config, context), settings)
    @classmethod
    def provides(cls, config):
        return LocalSandboxProvider.provides(config)
    async def start(self):
        await self.provider.start()
        self.capabilities = self.provider.capabilities
        self.sandbox_type = self.provider.sandbox_type
        await SandboxPool.start(self)
    async def close(self):
        await SandboxPool.close(self)
        await self.provider.close()
"""


@pytest.fixture(params=PROVIDERS)
def use(request: pytest.FixtureRequest) -> str:
    """The name of a provider that can reset its sandboxes."""
    return must_answer(str(request.param))


@pytest.fixture
async def provider(use: str) -> AsyncIterator[Any]:
    """The provider, started."""
    async with build_driver("sandbox", PluginChoice(use=use), DriverContext(run_id="pool")) as started:
        yield started


async def own(provider: Any) -> set[str]:
    """The sandboxes that this provider has."""
    return {info.id for info in await provider.list()} & set(provider.sandboxes)


def without_python(found: bytes) -> bytes:
    """Leave out the folders of the Python that runs ALE: a local sandbox has it in /tmp if a checkout is there."""
    above = {bytes(path) for prefix in (sys.prefix, sys.base_prefix) for path in (Path(prefix), *Path(prefix).parents)}
    return b"".join(line for line in found.splitlines(keepends=True) if line.rstrip() not in above)


async def test_episodes_share_sandboxes_and_nothing_else(provider: Any) -> None:
    rng = random.Random(1)
    async with SandboxPool(provider, PoolConfig(max_sandboxes=3)) as pool:
        looks: set[bytes] = set()

        async def episode(number: int) -> None:
            spec = SandboxSpec(
                resources=Resources(disk_mib=16),
                env={"N": f"n{number}"} | ({"LEFT": "x"} if number % 2 else {"OTHER": "x"}),
                files={"task": str(number).encode()},
                labels={"episode": str(number)},
            )
            async with await pool.start_sandbox(spec) as box:
                assert await box.download("task") == str(number).encode()
                looks.add((await box.exec(FIND, user=TESTS)).stdout)
                await box.exec(rng.choice(LITTER))
                await box.upload({"/tmp/hidden/answer": b"42"}, user=TESTS)
                assert (await box.exec("cat /tmp/hidden/answer", user=TESTS)).stdout == b"42"

        await asyncio.gather(*(episode(number) for number in range(24)))
        assert len(looks) == 1, f"every episode must begin alike: {looks}"
        assert re.fullmatch(rb"\./task\n\d+ x\n", without_python(looks.pop()))
        metrics = pool.metrics()
        assert metrics["requests"] == metrics["cold_starts"] + metrics["warm_hits"] == 24
        assert metrics["cold_starts"] <= 3 + metrics["resets_failed"]
        assert metrics["resets_failed"] == 0
        assert len(await own(provider)) <= 3
    assert await own(provider) == set()


async def test_a_sandbox_that_was_removed_from_outside_is_replaced(provider: Any) -> None:
    async with SandboxPool(provider, PoolConfig()) as pool:
        box = await pool.start_sandbox(SandboxSpec())
        await box.stop()
        for _ in range(1000):
            if not pool.metrics()["idle"]:
                await asyncio.sleep(0.01)
        await provider.remove(box.id)
        async with await pool.start_sandbox(SandboxSpec()) as other:
            assert other.id != box.id
            assert (await other.exec("echo on")).stdout == b"on\n"
        assert pool.metrics()["resets_failed"] == 1


async def test_closing_in_the_middle_of_everything_leaves_nothing(provider: Any) -> None:
    pool = SandboxPool(provider, PoolConfig(max_sandboxes=4, warm=1))
    await pool.start()

    async def episode() -> None:
        async with await pool.start_sandbox(SandboxSpec()) as box:
            await box.exec("sleep 0.05; mkdir x")

    episodes = [asyncio.ensure_future(episode()) for _ in range(12)]
    await asyncio.sleep(0.6)
    await pool.close()
    ended = await asyncio.gather(*episodes, return_exceptions=True)
    assert {type(end) for end in ended} <= {type(None), SandboxError}
    assert await own(provider) == set()


@pytest.mark.slow
@pytest.mark.bwrap
def test_a_loan_keeps_the_whole_contract_of_a_sandbox(tmp_path: Path) -> None:
    write_package(tmp_path, "far-away", POOLED, name="pooled", kind="sandbox")
    suites = ("-k", "test_sandbox and not network and not attach and not reset")
    done = run_kit_here(tmp_path, "sandbox:pooled", *suites, path=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.bwrap
def test_a_run_uses_its_sandboxes_again_and_tells_how_often(run_file: RunFile) -> None:
    summary = summary_of(
        ale("run", run_file(SCRIPTED), "--only", "rollout", "rollout.concurrency=2", "pool.max_sandboxes=2")
    )
    told = summary["sandboxes"]
    assert told["pool/requests"] == told["pool/cold_starts"] + told["pool/warm_hits"] == summary["rollouts"]
    if shutil.which("bwrap"):
        assert told["pool/cold_starts"] <= 2 + told["pool/resets_failed"]
        assert told["pool/warm_hits"] > 0
    assert (told["pool/in_use"], told["pool/idle"]) == (0, 0), "nothing is left at the end"


@pytest.mark.bwrap
def test_a_run_says_how_long_its_episodes_waited_for_a_sandbox(run_file: RunFile, tmp_path: Path) -> None:
    done = ale(
        "run",
        run_file(SCRIPTED),
        "--only",
        "rollout",
        "rollout.concurrency=4",
        "pool.max_sandboxes=1",
        "pool.max_uses=1",
        "--out",
        tmp_path / "run",
    )
    assert done.returncode == 0, done.stderr
    with RunStore.open(tmp_path / "run") as store:
        metrics = store.metrics("rl")
    assert metrics["pool/cold_starts"][-1] == (2, metrics["pool/requests"][-1][1])
    assert metrics["pool/wait_s_max"][-1][1] >= metrics["pool/start_s_p50"][-1][1]


@pytest.mark.bwrap
def test_without_a_pool_each_episode_starts_and_stops_a_sandbox_of_its_own(run_file: RunFile, tmp_path: Path) -> None:
    out = tmp_path / "run"
    summary = summary_of(ale("run", run_file(SCRIPTED), "--only", "rollout", "pool=null", "--out", out))
    assert (summary["status"], summary["sandboxes"], summary["failures"]) == ("completed", {}, {})
    with RunStore.open(out) as store:
        assert not [name for name in store.metrics("rl") if name.startswith("pool/")]
        made = list(store.trajectories())
    assert made
    assert all(dict(t.timings)["start"] > 0 and "stop" in dict(t.timings) for t in made)


def test_pool_settings_that_make_no_sense_are_sentences_with_their_paths(run_file: RunFile) -> None:
    done = ale("run", run_file(SCRIPTED), "--only", "rollout", "pool.starts_at_once=0")
    assert done.returncode == 2
    assert "pool.starts_at_once" in done.stderr
    done = ale(
        "run",
        run_file(SCRIPTED + "sandbox: {{use: local, isolation: none}}\nneeds: {{network: full}}\n"),
        "--only",
        "rollout",
        "pool.warm=2",
    )
    assert done.returncode == 2, done.stderr
    assert "sandbox: pool.warm=2 needs a sandbox with 'Resets'" in done.stderr
    assert "which 'local' with these settings cannot; change its settings" in " ".join(done.stderr.split())
