"""With `ale sandbox`, one process lists and removes what another process has started."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ale_command import ALE
from support import forked_command
from support.sandbox_providers import answers

OWNER = """
import asyncio, sys
from ale.registry.drivers import build_driver
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
async def main():
    provider = build_driver("sandbox", PluginChoice(use=sys.argv[1]), DriverContext(labels={"run": "mine"}))
    async with provider:
        for name in sys.argv[2:]:
            await provider.start_sandbox(SandboxSpec(id=name, labels={"task": name[-1]}))
        print("ready", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
VISITOR = """
import asyncio, sys
from ale.registry.drivers import build_driver
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
async def main():
    async with build_driver("sandbox", PluginChoice(use=sys.argv[1]), DriverContext()) as provider:
        async with await provider.start_sandbox(SandboxSpec(image=sys.argv[2])) as box:
            print((await box.exec("python3 -c 'import ssl, sqlite3, json; print(6 * 7)'")).output, end="")
asyncio.run(main())
"""
Ale = Callable[..., subprocess.CompletedProcess[str]]


LOCAL, DOCKER, PODMAN = "local", *(pytest.param(e, marks=getattr(pytest.mark, e)) for e in ("docker", "podman"))
in_every_provider = pytest.mark.parametrize("provider", [LOCAL, DOCKER, PODMAN], indirect=True)
"""For what the provider does; what the command does itself is tested with one engine of containers."""


@pytest.fixture(params=[LOCAL, DOCKER])
def provider(request: pytest.FixtureRequest) -> str:
    if request.param != "local" and not answers(request.param):
        pytest.skip(f"{request.param} does not answer")
    return str(request.param)


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """State folders of this test's own."""
    return {**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("s"))}


@pytest.fixture
def ale(environment: dict[str, str], provider: str) -> Ale:
    def call(*arguments: str, of: str = provider, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command_line(*arguments, of=of),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=environment,
        )

    return call


def command_line(*arguments: str, of: str) -> list[str]:
    """`ale sandbox ... --sandbox OF`, the option before what may follow a `--`."""
    words = 2 if arguments[0] == "image" else 1
    return [str(forked_command.program()), "sandbox", *arguments[:words], "--sandbox", of, *arguments[words:]]


@pytest.fixture
def owner(provider: str, environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process with two sandboxes, and their ids."""
    ids = [f"ale-cli-{os.getpid()}-{provider}-{letter}" for letter in "ab"]
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, provider, *ids], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process, ids
    process.kill()
    process.wait()


@in_every_provider
def test_what_one_process_started_another_lists_and_removes(
    owner: tuple[subprocess.Popen[str], list[str]], ale: Ale
) -> None:
    _, (first, second) = owner
    table = ale("ls").stdout.splitlines()
    assert table[0].split() == ["ID", "PROVIDER", "STATE", "AGE", "LABELS"]
    (line,) = [line for line in table if line.startswith(first)]
    assert "running" in line
    assert "run=mine task=a" in line
    listed = {item["id"]: item for item in json.loads(ale("ls", "--json").stdout)}
    assert listed[second]["alive"]
    assert listed[second]["labels"]["task"] == "b"
    assert ale("rm", first).stdout == f"{first}\n"
    assert first not in ale("ls").stdout
    done = ale("rm", first, second)
    assert done.returncode == 2
    assert done.stdout == f"{second}\n"
    assert done.stderr == f"error: There is no sandbox {first}; `ale sandbox ls` lists the existing ones.\n"


@in_every_provider
def test_what_a_killed_owner_left_is_pruned(
    owner: tuple[subprocess.Popen[str], list[str]], ale: Ale, provider: str, tmp_path: Path
) -> None:
    process, ids = owner
    process.kill()
    process.wait()
    ale("prune")
    assert not set(ids) & {item["id"] for item in json.loads(ale("ls", "--json").stdout)}
    assert "Traceback" not in ale("prune").stderr


def test_a_provider_that_does_not_exist_is_a_sentence(ale: Ale) -> None:
    done = ale("ls", of="lokal")
    assert done.returncode == 2
    assert "there is no sandbox plugin 'lokal'. Did you mean 'local'?" in done.stderr


@pytest.mark.docker
@in_every_provider
def test_images_are_made_without_a_registry(ale: Ale, provider: str) -> None:
    name = f"ale-test-python-{os.getpid()}:1"
    done = ale("image", "build", "--python", "--name", name)
    if provider == "local":
        assert done.returncode == 2
        assert "has no 'BuildsImages' (makes images without a registry); use a provider that has it" in done.stderr
        return
    assert done.stdout == f"{name}\n", done.stderr
    try:
        ran = subprocess.run(
            [sys.executable, "-c", VISITOR, provider, name], capture_output=True, text=True, check=False, timeout=120
        )
        assert ran.stdout == "42\n", ran.stderr
        first = image_id(provider, name)
        assert ale("image", "build", "--python", "--name", name).returncode == 0
        assert image_id(provider, name) != first
        assert image_id(provider, first) == "", "the image that had the name before is gone"
    finally:
        subprocess.run([provider, "rmi", "--force", name], capture_output=True, check=False)


def image_id(engine: str, image: str) -> str:
    """The id of an image; nothing if the engine does not have it."""
    shown = [engine, "image", "inspect", "--format", "{{.Id}}", image]
    return subprocess.run(shown, capture_output=True, text=True, check=False).stdout.strip()


@in_every_provider
def test_exec_runs_a_command_as_if_it_ran_here(owner: tuple[subprocess.Popen[str], list[str]], ale: Ale) -> None:
    _, (box, _) = owner
    done = ale("exec", box, "--", "sh", "-c", "cat; echo err >&2; exit 7", stdin="through stdin")
    assert (done.stdout, done.stderr, done.returncode) == ("through stdin", "err\n", 7)
    assert ale("exec", box, "--", "echo", "a  b", "$HOME").stdout == "a  b $HOME\n", "words of their own are words"
    assert ale("exec", box, "--", "echo a  b; echo ${#HOME}").stdout.startswith("a b\n"), "one word is for the shell"
    done = ale("exec", box, "--cwd", "/tmp", "--env", "A=1 2", "--env", "B=x=y", "--", 'pwd; echo "$A|$B"')
    assert done.stdout == "/tmp\n1 2|x=y\n"
    assert ale("exec", box, "--", "id -un").stdout == "agent\n"
    assert ale("exec", box, "--user", "tests", "--", "id -un").stdout == "tests\n"
    late = ale("exec", box, "--timeout", "5", "--", "echo before; sleep 60")
    assert (late.stdout, late.returncode) == ("before\n", 124)
    assert "ended after" in late.stderr
    wrong = ale("exec", box, "--env", "A", "--", "true")
    assert (wrong.returncode, wrong.stderr) == (2, "error: --env takes NAME=VALUE, such as --env DEBUG=1.\n")
    assert ale("exec", box, "--", "exit 5").returncode == 5, "the sandbox goes on after all of this"


def test_exec_shows_output_while_the_command_runs(
    owner: tuple[subprocess.Popen[str], list[str]], ale: Ale, provider: str, environment: dict[str, str]
) -> None:
    _, (box, _) = owner
    line = "echo first; while [ ! -e go ]; do sleep 0.05; done; echo second"
    with subprocess.Popen(
        command_line("exec", box, "--", line, of=provider),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "first\n"
        assert ale("exec", box, "--", "touch go").returncode == 0
        assert running.stdout.read() == "second\n"
        assert running.wait(60) == 0


def test_ctrl_c_ends_the_command_and_leaves_the_sandbox(
    owner: tuple[subprocess.Popen[str], list[str]], ale: Ale, provider: str, environment: dict[str, str]
) -> None:
    process, (box, _) = owner
    beat = "i=0; while :; do i=$((i+1)); echo $i > beat.new; mv beat.new beat; sleep 0.05; done"
    with subprocess.Popen(
        command_line("exec", box, "--", beat, of=provider),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as running:
        assert ale("exec", box, "--", "while [ ! -e beat ]; do sleep 0.05; done").returncode == 0
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (130, "interrupted\n")
    first, second = ale("exec", box, "--", "cat beat; sleep 0.4; cat beat").stdout.split()
    assert first == second
    assert process.poll() is None


def test_cp_copies_folders_in_and_out(owner: tuple[subprocess.Popen[str], list[str]], ale: Ale, tmp_path: Path) -> None:
    _, (box, _) = owner
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/file").write_bytes(b"\0some\n")
    assert ale("cp", str(tmp_path / "in"), f"{box}:copy").returncode == 0
    assert ale("exec", box, "--", "cat copy/deep/file; echo more > copy/more").stdout == "\0some\n"
    done = ale("cp", f"{box}:copy", str(tmp_path / "out"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out/deep/file").read_bytes() == b"\0some\n"
    assert (tmp_path / "out/more").read_text() == "more\n"
    assert ale("cp", f"{box}:copy/more", str(tmp_path)).returncode == 0
    assert ale("cp", str(tmp_path / "more"), f"{box}:copy/deep/").returncode == 0
    assert ale("exec", box, "--", "cat copy/deep/more").stdout == "more\n"
    assert (tmp_path / "more").read_text() == "more\n"
    (tmp_path / "more").write_text("old\n")
    assert ale("cp", f"{box}:copy/more", str(tmp_path / "more")).returncode == 0
    assert (tmp_path / "more").read_text() == "more\n", "a file that exists is replaced, as by cp"
    (tmp_path / "here").mkdir()
    assert ale("cp", f"{box}:copy/.", str(tmp_path / "here")).returncode == 0
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["deep", "more"]
    for paths, sentence in (
        (("a", "b"), "error: One of the two paths must be in a sandbox, written ID:PATH"),
        ((str(tmp_path / "none"), f"{box}:x"), "error: There is no file or folder"),
        (
            (f"{box}:copy", str(next(p for p in (tmp_path / "out").rglob("*") if p.is_file()))),
            "exists already; remove it",
        ),
        ((f"{box}:copy/more", str(tmp_path / "here/deep/../..") + "/in/deep/nowhere/"), "There is no folder"),
        ((f"{box}:copy/deep", str(tmp_path / "here")), "here/deep exists already"),
        ((f"{box}:none", str(tmp_path / "none")), "Nothing was copied"),
    ):
        refused = ale("cp", *paths)
        assert refused.returncode in (1, 2)
        assert sentence in refused.stderr, refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "none").exists()
    assert not [*tmp_path.rglob(".ale-cp-*")]


def test_shell_runs_the_lines_of_a_script_in_one_shell(
    owner: tuple[subprocess.Popen[str], list[str]], ale: Ale
) -> None:
    _, (box, _) = owner
    script = "cd /tmp\nx='a b'\npwd; echo \"$x\"\necho err >&2\n(exit 4)\n"
    done = ale("shell", box, stdin=script)
    assert (done.stdout, done.stderr, done.returncode) == ("/tmp\na b\n", "err\n", 4)
    done = ale("shell", box, "--cwd", "/tmp", stdin="pwd\nexit 3\necho never\n")
    assert (done.stdout, done.returncode) == ("/tmp\n", 3)
    assert ale("shell", box, stdin="false\nexit\n").returncode == 1
    assert ale("shell", box, stdin="").returncode == 0
    assert ale("exec", box, "--", "echo on").stdout == "on\n"


def test_at_a_terminal_ctrl_c_ends_the_line_that_runs_and_ctrl_d_leaves(
    owner: tuple[subprocess.Popen[str], list[str]], provider: str, environment: dict[str, str]
) -> None:
    _, (box, _) = owner
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(ALE, command_line("shell", box, of=provider), {**environment, "TERM": "dumb"})
    seen = b""

    def until(words: bytes) -> None:
        nonlocal seen
        while words not in seen:
            assert select.select([terminal], [], [], 60)[0], seen
            seen += os.read(terminal, 4096)
        seen = seen.partition(words)[2]

    prompt = f"{box}$ ".encode()
    until(prompt)
    os.write(terminal, b"x=kept; echo $((6 * 7))\n")
    until(b"42\r\n")
    until(prompt)
    os.write(terminal, b"touch runs; sleep 600\n")
    subprocess.run(
        command_line("exec", box, "--", "while [ ! -e runs ]; do sleep 0.05; done", of=provider),
        env=environment,
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=60,
    )
    os.write(terminal, b"\x03")
    until(prompt)
    os.write(terminal, b"echo still-$x\n")
    until(b"still-kept\r\n")
    until(prompt)
    os.write(terminal, b"\x04")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def test_logs_and_stats_tell_what_happens_in_a_sandbox(
    owner: tuple[subprocess.Popen[str], list[str]], ale: Ale
) -> None:
    _, (box, other) = owner
    ale("exec", box, "--", "echo one; exit 3")
    logs = ale("logs", box).stdout
    assert "echo one; exit 3\n" in logs
    assert "exit code 3\n" in logs
    table = ale("ls", "--stats").stdout.splitlines()
    assert table[0].split() == [
        "ID",
        "PROVIDER",
        "STATE",
        "AGE",
        "MEMORY",
        "CPU",
        "PIDS",
        "DISK",
        "NET",
        "IN",
        "NET",
        "OUT",
        "LABELS",
    ]
    (line,) = [line for line in table if line.startswith(box)]
    assert "run=mine task=a" in line
    listed = {item["id"]: item for item in json.loads(ale("ls", "--json", "--stats").stdout)}
    assert listed[other]["stats"]["memory_bytes"] > 100_000
    assert listed[other]["stats"]["pids"] >= 1
    assert "stats" not in json.loads(ale("ls", "--json").stdout)[0]


def test_a_sandbox_that_cannot_be_reached_is_a_sentence(
    owner: tuple[subprocess.Popen[str], list[str]], ale: Ale, provider: str
) -> None:
    process, (box, _) = owner
    for command in (("exec", "no-such-box", "--", "true"), ("shell", "no-such-box"), ("logs", "no-such-box")):
        done = ale(*command)
        assert done.returncode == 1
        assert done.stderr.startswith("error: There is no ")
        assert done.stderr.endswith(" sandbox no-such-box; `ale sandbox ls` lists the existing ones.\n")
    process.kill()
    process.wait()
    done = ale("exec", box, "--", "true")
    assert done.returncode == 1
    assert "is gone; `ale sandbox prune`" in done.stderr or "There is no" in done.stderr  # an engine removes it at once
    assert "Traceback" not in done.stderr
