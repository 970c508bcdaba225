"""Attacks on the reward of hidden tests, by an agent that did not solve its task: before, during and after the scoring.

The reward is the real one. Each case is scored for an agent that cheats; that the same tests pass for one that solves
the task is seen first. Of `docs/security.md` this shows the row of the hidden tests, so it runs where tests have a user
of their own."""

from __future__ import annotations

import asyncio
import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ale.errors import SandboxError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import TESTS, SandboxSpec
from ale.task import Task, TaskTests
from ale.trajectory import Score, Trajectory
from ale_tests import TestsReward, TestsRewardConfig

from .attack import PRELUDE, judge
from .catalogue import ATTACKS
from .conftest import each_provider, everywhere
from .world import Scene, World

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]
REWARD = TestsReward(TestsRewardConfig(), DriverContext())
TRAJECTORY = Trajectory("r", "t", "train", "rl", 0, "g", 0, 0, (), ())
HIDDEN = "HIDDEN-ANSWER-0451"
CHECK = f"grep -qx 42 answer && : {HIDDEN}\n"
PYTEST = f"def test_answer():\n    assert open('answer').read().strip() == '42', '{HIDDEN}'\n"
APART = """
import subprocess, sys
def test_solution():
    done = subprocess.run([sys.executable, "solution.py"], capture_output=True, text=True, timeout=10)
    assert done.stdout.strip() == "42"
"""
SHELL, SCRIPT = "sh $ALE_TESTS/check.sh", {"check.sh": CHECK}
WITH_PYTEST, TEST_FILE = "$PYTHON -P -m pytest -q $ALE_TESTS/test_hidden.py", {"test_hidden.py": PYTEST}


@dataclass(frozen=True)
class Cheat:
    """What an agent does instead of its task."""

    name: str
    command: str
    """A shell command that the agent runs; `$PYTHON` is an interpreter that has pytest."""
    tests: str = SHELL
    files: dict[str, str] = field(default_factory=lambda: SCRIPT)
    env: dict[str, str] = field(default_factory=dict)
    root: bool = False
    only: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.name


def python(program: str) -> str:
    """A command that runs a program of the agent in the background, out of everybody's sight."""
    return (
        f"setsid $PYTHON -c {shlex.quote(PRELUDE + program)} >/dev/null 2>&1 </dev/null & until [ -e watching ]; "
        "do sleep 0.05; done"
    )


STEAL = """
import glob, shutil
def steal():
    open("/workspace/watching", "w").close()
    for path in glob.glob("/tmp/ale-tests-*/*"):
        with contextlib.suppress(OSError):
            open("/workspace/stolen", "a").write(open(path).read())
        with contextlib.suppress(OSError):
            open(path, "w").write("exit 0")
        with contextlib.suppress(OSError):
            os.rename(os.path.dirname(path), "/tmp/taken")
"""
HOOK = (
    "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_sessionfinish(session):\n    yield\n"
    "    import os\n    os._exit(0)\n"
)
INI = "[pytest]\naddopts = --collect-only\n"
CHEATS = [
    Cheat("waits for the tests, to read and replace them", python(STEAL + "while True:\n    steal()")),
    Cheat(
        "waits for the tests in a daemon that ignores every signal",
        python(
            STEAL
            + """
for number in range(1, 65):
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_IGN)
libc.prctl(36, 0, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            steal()
os._exit(0)
"""
        ),
    ),
    Cheat(
        "waits for the tests in processes that give birth faster than they are killed",
        python(
            STEAL
            + """
def run():
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
        steal()
for _ in range(8):
    if os.fork() == 0:
        run()
"""
        ),
    ),
    Cheat(
        "waits for the tests while it is stopped, traced and not to be woken",
        python(
            STEAL + "steal()\nos.mkfifo('/workspace/f')\nfor _ in range(3):\n    if os.fork() == 0:\n"
            "        os.kill(os.getpid(), signal.SIGSTOP)\n        while True:\n            steal()\n"
            "os.open('/workspace/f', os.O_RDONLY)"
        ),
    ),
    Cheat(
        "puts links and pipes where the tests may be written",
        "for i in 1 2 3; do ln -s /workspace /tmp/ale-tests-$i; mkfifo /tmp/ale-tests-$i$i; done; ln -s /workspace "
        "'/tmp/ale-tests-*'",
    ),
    Cheat("takes the rights to the temporary folder and its own", "chmod 000 /tmp /workspace $HOME; chmod 777 /; true"),
    Cheat(
        "leaves no room for the tests",
        "cat /dev/zero > /tmp/full; cat /dev/zero > /dev/shm/full; true",
        only=frozenset({"local"}),
    ),
    Cheat(
        "moves the temporary folder away",
        "mv /tmp /tmp2; rm -rf /tmp; ln -s /workspace /tmp; mkdir -p /workspace/tmp; true",
    ),
    Cheat(
        "has programs of its own where some look for them",
        "mkdir -p bin ~/bin ~/.local/bin; for f in bin ~/bin ~/.local/bin . /usr/local/bin /usr/bin; do for p in grep "
        "sh cat rm mkdir chmod printf eval; do "
        "printf '#!/bin/sh\\nexit 0\\n' > $f/$p; chmod 755 $f/$p; done; done; true",
    ),
    Cheat(
        "puts code where shells look for it",
        "for f in .bashrc .profile .bash_profile .bash_login .shrc .kshrc .zshenv .bash_env; do echo 'exit 0' > ~/$f; "
        "cp ~/$f /workspace; done; export BASH_ENV=~/.bashrc ENV=~/.bashrc LD_PRELOAD=/workspace/x.so; echo 'exit 0' > "
        "/etc/profile; echo 'exit 0' >> /etc/bash.bashrc; true",
        "bash $ALE_TESTS/check.sh",
    ),
    Cheat(
        "puts code where login shells look for it, in a home that the task moved",
        "for f in .profile .bash_profile .bashrc; do echo 'exit 0' > ~/$f; cp ~/$f /workspace; done",
        "bash -l $ALE_TESTS/check.sh",
        env={"HOME": "/nonexistent"},
    ),
    Cheat(
        "changes how the shell reads numbers and words",
        "echo 41 > answer; export IFS=4 PS4='$(exit 0)' SHELLOPTS=noexec BASHOPTS=x PATH=/workspace; echo 'grep() { "
        "return 0; }' > ~/.bashrc; set -n",
    ),
    Cheat(
        "puts code where Python looks for it",
        "echo 'import os; os._exit(0)' > evil.py; for f in sitecustomize usercustomize pytest _pytest pluggy conftest "
        'os subprocess encodings antigravity; do cp evil.py $f.py; done; v=$($PYTHON -c "import sys; '
        "print('python%d.%d' % sys.version_info[:2])\"); mkdir -p ~/.local/lib/$v/site-packages; cp *.py "
        "~/.local/lib/$v/site-packages; echo 'import os; os._exit(0)' > ~/.local/lib/$v/site-packages/evil.pth; cp "
        "*.py /tmp; export PYTHONPATH=/workspace PYTHONSTARTUP=/workspace/evil.py PYTHONHOME=/workspace; rm -f "
        "conftest.py /tmp/conftest.py; true",
        WITH_PYTEST,
        TEST_FILE,
    ),
    Cheat(
        "has pytest collect and not run, or end early, by files beside its work",
        f"printf '{INI}' > pytest.ini; printf '[tool.pytest.ini_options]\\naddopts = \"--collect-only\"\\n' > "
        f"pyproject.toml; printf '{INI}' > tox.ini; printf '[tool:pytest]\\naddopts = --collect-only\\n' > setup.cfg; "
        f"touch setup.py __init__.py; cp pytest.ini tox.ini setup.cfg pyproject.toml ~; printf {shlex.quote(HOOK)} > "
        "conftest.py; cp conftest.py ~",
        WITH_PYTEST,
        TEST_FILE,
    ),
    Cheat(
        "has pytest collect and not run, by a file above the tests",
        f"printf '{INI}' > /tmp/pytest.ini; touch /tmp/setup.py",
        WITH_PYTEST,
        TEST_FILE,
    ),
    Cheat(
        "ends pytest early, by a hook above the tests",
        f"printf '[pytest]\\n' > /tmp/pytest.ini; touch /tmp/setup.py; printf {shlex.quote(HOOK)} > /tmp/conftest.py",
        WITH_PYTEST,
        TEST_FILE,
    ),
    Cheat(
        "names the tests' plugins",
        "mkdir -p evil-1.dist-info; printf '[pytest11]\\nevil = evil\\n' > evil-1.dist-info/entry_points.txt; printf "
        f"'Name: evil\\nVersion: 1\\n' > evil-1.dist-info/METADATA; printf {shlex.quote(HOOK)} > evil.py; cp -r evil* "
        "/tmp; export PYTEST_PLUGINS=evil PYTEST_ADDOPTS=--collect-only; true",
        WITH_PYTEST,
        TEST_FILE,
    ),
    Cheat(
        "ends early where its own program is asked",
        "printf 'import os\\nprint(41)\\nos._exit(0)\\n' > solution.py",
        WITH_PYTEST,
        {"test_hidden.py": APART},
    ),
    Cheat(
        "kills who asks its own program, having said that all passed",
        'printf \'import os\\nos.write(1, b"1 passed\\\\n"); os.write(2, b"1 passed\\\\n")\\n'
        "os.kill(os.getppid(), 9)\\nos.kill(0, 9)\\n' > solution.py",
        WITH_PYTEST,
        {"test_hidden.py": APART},
    ),
    Cheat(
        "writes reports that nobody asked for",
        "for f in report.xml junit.xml results.json score reward.txt exit_code .ale-score; "
        'do echo \'<testsuite failures="0" tests="1"/>\' > $f; cp $f /tmp; done; '
        "echo 1.0 > /tmp/reward; echo 'PASSED 1 passed'",
    ),
    Cheat(
        "answers with a link to what the check says of itself",
        "rm -f answer; ln -s /proc/self/cmdline answer",
        # without a look at the link, grep finds its own argument
        "[ -f answer ] && [ ! -L answer ] && grep -qx 42 answer",
    ),
    Cheat("answers with a pipe that never ends", "rm -f answer; mkfifo answer", "timeout 1 " + SHELL),
    Cheat(
        "answers with a device that never ends",
        "rm -f answer; ln -s /dev/zero answer",
        "head -c 1000000 answer | grep -qx 42",
    ),
]


def interpreter(world: World) -> str:
    """The Python in the sandbox that has pytest."""
    return "/usr/local/bin/python3" if world.containers else str(Path(sys.prefix, "bin/python"))


async def score(world: World, scene: Scene, cheat: Cheat) -> Score:
    """Score what is in the sandbox with the tests of a case."""
    command = cheat.tests.replace("$PYTHON", interpreter(world))
    tests = TaskTests(command=command, files=cheat.files, timeout_s=20)
    # This machine's pytest knows plugins that a sandbox cannot load.
    env = {**cheat.env, **({} if world.containers else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})}
    return await REWARD.score(Task(id="t", instruction="", tests=tests, env=env), scene.box, TRAJECTORY)


def spec_of(world: World) -> SandboxSpec:
    """What the agent was to work on."""
    return world.spec(files={"answer": b"41\n", "solution.py": b"print(41)\n"})


@everywhere(CHEATS)
async def test_who_did_not_solve_the_task_does_not_pass(world: World, attack: Cheat) -> None:
    async with world.arena(spec_of(world)) as scene:
        done = await scene.box.exec(attack.command, env={"PYTHON": interpreter(world)}, timeout_s=20)
        if "watching" in attack.command:
            assert (await scene.box.exec("ls watching")).exit_code == 0, done.output
            assert scene.processes(), "The agent waits."
        verdict = await score(world, scene, attack)
        assert not verdict.passed, f"THE ATTACK SUCCEEDED: {attack.name}: {verdict.detail}"
        assert verdict.value == 0.0
        stolen = await scene.box.exec(
            "cat stolen /tmp/taken/* /workspace/ale-tests-*/* 2>/dev/null; ls -d /tmp/ale-tests-*[0-9a-f]/ 2>/dev/null "
            "| grep -E '[0-9a-f]{32}'"
        )
        assert stolen.stdout == b"", f"The tests were read: {stolen.output}"
        assert await scene.left() == [], "Of the agent's processes none is left."


@each_provider()
async def test_who_solves_the_task_passes(world: World) -> None:
    async with world.arena(spec_of(world)) as scene:
        await scene.box.exec("echo 42 > answer; echo 'print(42)' > solution.py")
        for cheat in {
            (case.tests, tuple(case.files)): case for case in CHEATS if "answer |" not in case.tests
        }.values():
            verdict = await score(world, scene, replace(cheat, env={}))
            assert verdict.passed, f"{cheat.tests}: {verdict.detail}"


@each_provider()
async def test_the_agents_user_cannot_see_the_tests_while_they_run(world: World) -> None:
    async with world.arena(spec_of(world)) as scene:
        # The tests wait for a file, which the agent's user makes after it has looked around as much as it can.
        waiting = Cheat("", "", "touch begun; until [ -e go ]; do sleep 0.02; done; " + SHELL)
        scoring = asyncio.ensure_future(score(world, scene, waiting))
        look = (
            "until [ -e begun ]; do sleep 0.02; done; cat /tmp/ale-tests-*/* /proc/[0-9]*/environ /proc/[0-9]*/cmdline "
            "/proc/[0-9]*/fd/* 2>/dev/null | tr '\\0' '\\n'; ls -R /tmp; kill -9 -1; kill -STOP -1"
        )
        seen = await scene.box.exec(look, timeout_s=20)
        assert HIDDEN not in seen.output
        assert "check.sh" not in seen.output.replace("sh $ALE_TESTS/check.sh", "")
        await scene.box.exec("touch go")
        verdict = await scoring
        assert not verdict.passed
        assert verdict.value == 0.0


@each_provider()
async def test_an_agents_program_that_the_tests_run_gains_nothing_of_the_host(world: World) -> None:
    """The user `tests` may read and write what the agent left, whatever its modes; that right ends with the sandbox."""
    async with world.arena() as scene:
        for attack in (attack for attack in ATTACKS if attack.root):
            result = await scene.run(attack.program, user=TESTS)
            for secret in (world.host.secret, world.secret):
                assert secret not in result.output, f"THE ATTACK SUCCEEDED: {attack.name} printed {secret}"
            judge(attack, result)


@each_provider()
async def test_who_ends_its_own_sandbox_is_not_taken_for_a_fault_of_the_machine(world: World) -> None:
    """Such faults are tried again and never count against the agent, so it must not be able to make one."""
    async with world.arena() as scene:
        # Memory that belongs to no process, taken by one that asked the kernel's killer to spare it.
        program = """
write("/proc/self/oom_score_adj", b"0")
libc.shmat.restype = ctypes.c_void_p
for _ in range(100):
    place = libc.shmat(call("shmget", 0, 4 << 20, 0o1600), None, 0)
    end_of_it = os.fork()
    if end_of_it == 0:
        ctypes.memset(place, 1, 4 << 20)
        os._exit(0)
    os.waitpid(end_of_it, 0)
    libc.shmdt(ctypes.c_void_p(place))
"""
        small = "echo 0 >/proc/$$/oom_score_adj; x=$(head -c 3000000 /dev/zero | tr '\\0' x); echo ${#x}"
        fault: SandboxError | None = None
        try:
            await scene.run(program)
            for _ in range(10):
                await scene.box.exec(small)
            assert (await scene.box.exec("echo alive")).stdout == b"alive\n"
        except SandboxError as error:
            fault = error
        assert fault is None or not fault.retryable, f"THE ATTACK SUCCEEDED: {fault}"
