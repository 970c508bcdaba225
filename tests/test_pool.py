"""The pool with real sandboxes, and in whole runs. Its faults, in memory: core/tests/test_pool.py."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from ale_command import SCRIPTED, ale, summary_of
from engines import must_answer
from kit import SPREAD, run_kit
from strangers import write_package

from ale.config_base import PluginChoice
from ale.errors import SandboxError
from ale.plugins import build_driver
from ale.rollout.pool import SandboxPool
from ale.run_config import PoolConfig
from ale.specs.driver import DriverContext
from ale.specs.sandbox import TESTS, Resources, SandboxSpec
from ale.store import RunStore

RunFile = Callable[[str], Path]
PROVIDERS = [
    pytest.param("local", marks=pytest.mark.bwrap),
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("podman", marks=pytest.mark.podman),
]
FIND = "find . ~ /tmp /var/tmp /dev/shm -mindepth 1 2>/dev/null; set -- /proc/[0-9]*; echo $# $LEFT$OTHER"
LITTER = (
    "mkdir -p $N ~/$N /tmp/$N; echo $N > $N/f; echo $N > /dev/shm/$N; chmod 000 $N; (setsid sleep 1000 >/dev/null 2>&1 &); true",
    "while :; do echo $N >> log; done & sleep 0.05",
    "rm -rf .[!.]* * ~/* /tmp/*; ln -s / all",
)
POOLED = """
from ale.rollout.pool import SandboxPool
from ale.run_config import PoolConfig
from ale_local import LocalSandboxProvider
class Fixed(SandboxPool):
    api_version = LocalSandboxProvider.api_version
    capabilities = LocalSandboxProvider.capabilities - {"reset"}
    Config = LocalSandboxProvider.Config
    def __init__(self, config, context):
        super().__init__(LocalSandboxProvider(config, context), PoolConfig(max_uses=1, max_sandboxes=12, starts_at_once=3))
    @classmethod
    def provides(cls, config):
        return LocalSandboxProvider.provides(config) - {"reset"}
    async def start(self):
        await self.provider.start()
        self.capabilities = self.provider.capabilities - {"reset"}
        await super().start()
    async def close(self):
        await super().close()
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


async def test_episodes_share_sandboxes_and_nothing_else(provider: Any) -> None:
    rng = random.Random(1)
    async with SandboxPool(provider, PoolConfig(max_sandboxes=3)) as pool:
        looks: set[bytes] = set()

        async def episode(number: int) -> None:
            spec = SandboxSpec(
                resources=Resources(disk_mib=16), env={"N": f"n{number}"} | ({"LEFT": "x"} if number % 2 else {"OTHER": "x"}),
                files={"task": str(number).encode()}, labels={"episode": str(number)},
            )  # fmt: skip
            async with await pool.start_sandbox(spec) as box:
                assert await box.download("task") == str(number).encode()
                looks.add((await box.exec(FIND, user=TESTS)).stdout)
                await box.exec(rng.choice(LITTER))
                await box.upload({"/tmp/hidden/answer": b"42"}, user=TESTS)
                assert (await box.exec("cat /tmp/hidden/answer", user=TESTS)).stdout == b"42"

        await asyncio.gather(*(episode(number) for number in range(24)))
        assert len(looks) == 1, f"every episode must begin alike: {looks}"
        assert re.fullmatch(rb"\./task\n\d+ x\n", looks.pop())
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
    suites = ("-k", "test_sandbox and not network and not attach")
    done = run_kit(tmp_path, "sandbox:pooled", *suites, *SPREAD, path=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.bwrap
def test_a_run_uses_its_sandboxes_again_and_tells_how_often(run_file: RunFile) -> None:
    summary = summary_of(ale("run", run_file(SCRIPTED), "--only", "rollout", "rollout.concurrency=2"))
    told = summary["sandboxes"]
    assert told["pool/requests"] == told["pool/cold_starts"] + told["pool/warm_hits"] == summary["rollouts"]
    if shutil.which("bwrap"):
        assert told["pool/cold_starts"] <= 2 + told["pool/resets_failed"]
        assert told["pool/warm_hits"] > 0
    assert (told["pool/in_use"], told["pool/idle"]) == (0, 0), "nothing is left at the end"


@pytest.mark.bwrap
def test_a_run_says_how_long_its_episodes_waited_for_a_sandbox(run_file: RunFile, tmp_path: Path) -> None:
    done = ale(
        "run", run_file(SCRIPTED), "--only", "rollout", "rollout.concurrency=4", "pool.max_sandboxes=1",
        "pool.max_uses=1", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with RunStore.open(tmp_path / "run") as store:
        metrics = store.metrics("rl")
    assert metrics["pool/cold_starts"][-1] == (2, metrics["pool/requests"][-1][1])
    assert metrics["pool/wait_s_max"][-1][1] >= metrics["pool/start_s_p50"][-1][1]


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
    assert "pool.warm is 2" in done.stderr
    assert "set pool.warm to 0 or use another provider" in " ".join(done.stderr.split())
