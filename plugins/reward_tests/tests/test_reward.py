"""The reward over the local provider: what passes, what fails, and what is nobody's fault."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ale.errors import SandboxError, TaskError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import TESTS, Resources, SandboxSpec
from ale.task import Task, TaskTests
from ale.trajectory import Trajectory
from ale_local import LocalSandbox, LocalSandboxConfig, LocalSandboxProvider
from ale_tests import TestsReward, TestsRewardConfig
from ale_tests.reward import first_word

TRAJECTORY = Trajectory("r", "t", "train", "rl", 0, "g", 0, 0, (), ())
REWARD = TestsReward(TestsRewardConfig(), DriverContext())


def task(command: str, files: dict[str, str] | None = None, timeout_s: float = 20.0, **env: str) -> Task:
    """A task with these tests."""
    tests = TaskTests(command=command, files=files or {}, timeout_s=timeout_s)
    return Task(id="t", instruction="", tests=tests, env=env)


@pytest.fixture(params=["none", pytest.param("bubblewrap", marks=pytest.mark.bwrap)])
async def sandbox(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LocalSandbox]:
    """A sandbox of each isolation, its state in a folder of its own."""
    if request.param == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = LocalSandboxConfig(isolation=request.param, defaults=Resources(memory_mib=256, pids=64, disk_mib=8))
    async with (
        LocalSandboxProvider(settings, DriverContext()) as provider,
        await provider.start_sandbox(SandboxSpec(network="full" if request.param == "none" else "none")) as started,
    ):
        yield started


async def test_exit_code_zero_passes_and_others_fail(sandbox: LocalSandbox) -> None:
    await sandbox.exec("echo 42 > answer")
    tests = {"sub/check.sh": "grep -qx $EXPECTED answer || { echo wrong answer; exit 3; }"}
    passed = await REWARD.score(task("sh $ALE_TESTS/sub/check.sh", tests, EXPECTED="42"), sandbox, TRAJECTORY)
    assert (passed.value, passed.passed) == (1.0, True)
    assert passed.seconds > 0
    failed = await REWARD.score(task("sh $ALE_TESTS/sub/check.sh", tests, EXPECTED="43"), sandbox, TRAJECTORY)
    assert (failed.value, failed.passed, failed.detail) == (0.0, False, "wrong answer")


async def test_test_files_arrive_as_they_are_and_can_be_run(sandbox: LocalSandbox) -> None:
    text = 'it\'s "quoted" $HOME `x` \\ %s é 🙂\n\nno newline at the end'
    big = "y" * 300_000
    tests = {"a b/t'e.txt": text, "big": big, "run.sh": "#!/bin/sh\necho ran; cat\n"}
    command = """cat "$ALE_TESTS/a b/t'e.txt"; wc -c < $ALE_TESTS/big; $ALE_TESTS/run.sh; set -e; false; echo no"""
    score = await REWARD.score(task(command, tests), sandbox, TRAJECTORY)
    assert (score.passed, score.detail) == (False, text + "300000\nran")


@pytest.mark.bwrap
@pytest.mark.skipif(os.getuid() != 0, reason="several users need root outside")
@pytest.mark.parametrize("sandbox", ["bubblewrap"], indirect=True)
async def test_the_agents_user_cannot_read_the_tests(sandbox: LocalSandbox) -> None:
    tests = task("echo $ALE_TESTS; sleep 1", {"hidden": "x"})
    score = asyncio.create_task(REWARD.score(tests, sandbox, TRAJECTORY))
    await asyncio.sleep(0.3)
    assert (await sandbox.exec("cat /tmp/ale-tests-*/hidden; ls /tmp/ale-tests-*")).stdout == b""
    assert (await score).passed


async def test_the_values_can_be_chosen(sandbox: LocalSandbox) -> None:
    reward = TestsReward(TestsRewardConfig(pass_value=2.0, fail_value=-1.0), DriverContext())
    assert (await reward.score(task("true"), sandbox, TRAJECTORY)).value == 2.0
    assert (await reward.score(task("false"), sandbox, TRAJECTORY)).value == -1.0


async def test_a_time_out_fails(sandbox: LocalSandbox) -> None:
    score = await REWARD.score(task("echo begun; sleep 60", timeout_s=3), sandbox, TRAJECTORY)
    assert not score.passed
    assert "3 s" in score.detail
    assert "begun" in score.detail


async def test_a_time_out_can_be_no_verdict_at_all(sandbox: LocalSandbox) -> None:
    reward = TestsReward(TestsRewardConfig(timed_out="no_reward"), DriverContext())
    with pytest.raises(TaskError, match=r"did not end within 0\.3 s"):
        await reward.score(task("sleep 60", {"hidden": "x"}, timeout_s=0.3), sandbox, TRAJECTORY)
    assert (await sandbox.exec("ls -d ale-tests*", user=TESTS)).stdout == b""
    assert not (await reward.score(task("false"), sandbox, TRAJECTORY)).passed, "a failed test stays one"


async def test_nothing_of_the_agent_watches_and_nothing_of_the_tests_stays(sandbox: LocalSandbox) -> None:
    # A checkout below /tmp shows there, for the sandbox is given its Python.
    before = (await sandbox.exec('ls "$TMPDIR"', user=TESTS)).stdout
    spy = "while :; do cp -r $TMPDIR/ale-tests-* . 2>/dev/null; touch running; sleep .01; done"
    await sandbox.exec(f"({spy}) >/dev/null 2>&1 &")
    await sandbox.exec("until [ -e running ]; do sleep .01; done")
    tests = task("ls $ALE_TESTS; rm running; sleep .2; test ! -e running", {"hidden": "x"})
    score = await REWARD.score(tests, sandbox, TRAJECTORY)
    assert (score.passed, score.detail) == (True, "hidden")
    assert (await sandbox.exec("ls -d ale-tests*", user=TESTS)).stdout == b""
    assert (await sandbox.exec('ls "$TMPDIR"', user=TESTS)).stdout == before
    await REWARD.score(task("sleep 60", {"hidden": "x"}, timeout_s=0.2), sandbox, TRAJECTORY)
    assert (await sandbox.exec('ls "$TMPDIR"', user=TESTS)).stdout == before


async def test_tests_read_what_the_agent_closed(sandbox: LocalSandbox) -> None:
    await sandbox.exec("mkdir -m 700 d; echo 1 > d/f; chmod 600 d/f")
    assert (await REWARD.score(task("grep 1 d/f"), sandbox, TRAJECTORY)).passed


async def test_what_the_agent_left_out_is_its_failure(sandbox: LocalSandbox) -> None:
    for command in ("./run.sh", "sh run.sh", "no_such_program_x || ./y; exit 5", "true && no_such_program_x"):
        assert not (await REWARD.score(task(command), sandbox, TRAJECTORY)).passed
    await sandbox.upload({"run.sh": b"#!/no/such/interpreter\n"}, mode=0o755)
    assert not (await REWARD.score(task("./run.sh"), sandbox, TRAJECTORY)).passed
    await sandbox.upload({"run.sh": b"exit 127"}, mode=0o644)
    assert not (await REWARD.score(task("./run.sh"), sandbox, TRAJECTORY)).passed
    assert not (await REWARD.score(task("sh run.sh"), sandbox, TRAJECTORY)).passed


async def test_a_missing_test_program_is_the_tasks_error(sandbox: LocalSandbox) -> None:
    with pytest.raises(TaskError, match="no_such_program_x"):
        await REWARD.score(task("A=1 no_such_program_x $ALE_TESTS/x.py"), sandbox, TRAJECTORY)


async def test_test_files_stay_in_their_folder(sandbox: LocalSandbox) -> None:
    for name in ("/etc/x", "../x", "nul\0"):
        with pytest.raises(TaskError, match="relative path"):
            await REWARD.score(task("true", {name: ""}), sandbox, TRAJECTORY)


async def test_a_dead_sandbox_is_no_zero(sandbox: LocalSandbox) -> None:
    score = asyncio.create_task(REWARD.score(task("sleep 60"), sandbox, TRAJECTORY))
    await asyncio.sleep(0.3)
    os.kill(sandbox.record.pid, signal.SIGKILL)
    with pytest.raises(SandboxError):
        await score
    with pytest.raises(SandboxError):
        await REWARD.score(task("true"), sandbox, TRAJECTORY)


@pytest.mark.bwrap
@pytest.mark.parametrize("sandbox", ["bubblewrap"], indirect=True)
async def test_a_full_or_locked_temporary_folder_is_the_agents_failure(sandbox: LocalSandbox) -> None:
    await sandbox.exec("chmod 500 /tmp")
    await REWARD.score(task("true", {"a": "x"}), sandbox, TRAJECTORY)
    await sandbox.exec("chmod 1777 /tmp; cat /dev/zero > /tmp/full")
    score = await REWARD.score(task("true", {"a": "x" * 100_000}), sandbox, TRAJECTORY)
    assert not score.passed
    assert "no room" in score.detail


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("pytest -q", "pytest"),
        ("A=1 B='x y' python3 t.py", "python3"),
        ("pytest; x", "pytest"),
        ("./run.sh", None),
        ("$ALE_TESTS/run.sh", None),
        ("(cd x && y)", None),
        ("'unclosed", None),
        ("", None),
    ],
)
def test_the_first_word_of_a_command(command: str, word: str | None) -> None:
    assert first_word(command) == word


def grade(sandbox: LocalSandbox, provider: LocalSandboxProvider) -> LocalSandbox:
    """Let `open_another` start a sandbox like this one."""
    sandbox.open_another = lambda: started(provider, sandbox.spec)  # type: ignore[attr-defined]
    return sandbox


@asynccontextmanager
async def started(provider: LocalSandboxProvider, spec: SandboxSpec) -> AsyncIterator[LocalSandbox]:
    async with await provider.start_sandbox(spec.model_copy(update={"id": None})) as box:
        yield box


async def test_test_files_may_be_bytes(sandbox: LocalSandbox) -> None:
    data = bytes(range(256)) * 40
    made = task("wc -c < $ALE_TESTS/data; od -An -tx1 -N4 $ALE_TESTS/data; false", {"data": data, "empty": b""})  # type: ignore[dict-item]
    score = await REWARD.score(made, sandbox, TRAJECTORY)  # type: ignore[arg-type]
    assert score.detail.split() == ["10240", "00", "01", "02", "03"]


@pytest.mark.parametrize(
    ("writes", "value", "passed", "parts"),
    [
        ("echo 0.25", 0.25, False, {"reward": 0.25}),
        ("echo 1; exit_code=1", 1.0, True, {"reward": 1.0}),
        ("""echo '{"style": 0.5, "works": 1}'""", 0.75, False, {"style": 0.5, "works": 1.0}),
        ("""echo '{"style": 0.5, "reward": 1}'""", 1.0, True, {"style": 0.5, "reward": 1.0}),
    ],
)
async def test_tests_may_write_the_reward_themselves(
    sandbox: LocalSandbox, writes: str, value: float, passed: bool, parts: dict[str, float]
) -> None:
    made = task(f"{{ {writes}; }} > $ALE_TESTS/reward; exit 3")
    assert made.tests is not None
    made = made.model_copy(update={"tests": made.tests.model_copy(update={"reward_file": "reward"})})
    score = await REWARD.score(made, sandbox, TRAJECTORY)  # type: ignore[arg-type]
    assert (score.value, score.passed, score.parts) == (value, passed, parts)
    left = await sandbox.exec("ls /tmp ${TMPDIR:-/tmp} | grep ale-tests", user=TESTS)
    assert left.stdout == b""


@pytest.mark.parametrize("writes", ["true", "echo nan", "echo '{}'", "echo '[1]'", "echo text"])
async def test_a_reward_that_was_not_written_is_no_zero(sandbox: LocalSandbox, writes: str) -> None:
    tests = TaskTests(command=f"{{ {writes}; }} > $ALE_TESTS/reward", reward_file="reward")
    with pytest.raises(TaskError, match=r"must write a number, or a JSON object of numbers, to \$ALE_TESTS/reward"):
        await REWARD.score(Task(id="t", instruction="", tests=tests), sandbox, TRAJECTORY)  # type: ignore[arg-type]


async def test_a_task_without_tests_is_nobodys_failure(sandbox: LocalSandbox) -> None:
    with pytest.raises(TaskError, match="Task t has no tests; use a reward"):
        await REWARD.score(Task(id="t", instruction=""), sandbox, TRAJECTORY)  # type: ignore[arg-type]


async def test_tests_apart_see_the_artifacts_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = LocalSandboxConfig(isolation="none", defaults=Resources(memory_mib=256, pids=64, disk_mib=8))
    async with (
        LocalSandboxProvider(settings, DriverContext()) as provider,
        await provider.start_sandbox(SandboxSpec(network="full")) as box,
    ):
        await box.exec("mkdir out; echo 42 > out/answer; echo 1 > one; echo evil > conftest.py; mkfifo pipe")
        tests = TaskTests(command="find . -type f | sort; cat out/answer", artifacts=("out", "one", "missing"))
        score = await REWARD.score(Task(id="t", instruction="", tests=tests), grade(box, provider), TRAJECTORY)  # type: ignore[arg-type]
        assert (score.passed, score.detail.split()) == (True, ["./one", "./out/answer", "42"])
        linked = tests.model_copy(update={"artifacts": ("pipe",)})
        score = await REWARD.score(Task(id="t", instruction="", tests=linked), grade(box, provider), TRAJECTORY)  # type: ignore[arg-type]
        assert not score.passed, "a pipe is the agent's doing"
        assert score.detail.startswith("The artifact pipe cannot be copied: ")
        assert len(await provider.list()) == 1, "the sandbox apart is gone"
