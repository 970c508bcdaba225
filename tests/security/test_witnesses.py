"""The witnesses themselves: each notices the harm that it is there for. Without this, that they are silent would say
nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from ale.specs.sandbox import ExecResult

from .attack import Attack, judge
from .conftest import each_provider
from .host import Host, processes_in
from .world import World


@pytest.fixture(scope="module")
def victim(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Victims of its own, to be harmed."""
    made = Host(tmp_path_factory.mktemp("victim"))
    yield made
    made.close()


def test_they_are_silent_where_nothing_happened(victim: Host) -> None:
    assert list(victim.harm()) == []


@pytest.mark.parametrize("how", ["read", "opened", "written", "opened by another name"])
def test_a_touched_secret_is_noticed(victim: Host, how: str) -> None:
    if how == "read":
        victim.file.read_text()
    elif how == "opened":
        os.close(os.open(victim.file, os.O_RDONLY))
    elif how == "written":
        victim.file.write_text(victim.secret)
    else:
        link = victim.file.with_name("link")
        os.link(victim.file, link)
        link.read_text()
        link.unlink()
    assert "secret file was touched" in " ".join(victim.harm())
    assert list(victim.harm()) == [], "and told of once"


def test_a_stopped_or_slowed_process_is_noticed(victim: Host) -> None:
    for process in victim.processes:
        os.kill(process.running.pid, signal.SIGSTOP)
        while "stopped" not in process.look():
            time.sleep(0.005)
        assert "stopped" in " ".join(victim.harm())
        os.kill(process.running.pid, signal.SIGCONT)
        while "stopped" in process.look():
            time.sleep(0.005)
        assert "alive" in " ".join(victim.harm())
    os.setpriority(os.PRIO_PROCESS, victim.processes[0].running.pid, 5)
    assert "niceness 5" in " ".join(victim.harm())
    victim.processes[1].running.kill()
    victim.processes[1].running.wait()
    assert "gone" in " ".join(victim.harm())
    assert list(victim.harm()) == []


def test_a_visit_is_noticed(victim: Host) -> None:
    for name, listening in victim.listeners.sockets.items():
        with socket.socket(listening.family, listening.type) as caller:
            caller.connect(listening.getsockname())
            if name.startswith("udp"):
                caller.send(b"x")
    assert len([line for line in victim.harm() if "reached the host's listener" in line]) == len(
        victim.listeners.sockets
    )


@pytest.mark.asyncio(loop_scope="session")
@each_provider()
async def test_harm_to_the_sibling_is_noticed(world: World) -> None:
    stop = "kill -STOP $PID; until grep -q '^State:.T' /proc/$PID/status; do :; done"
    await world.sibling.exec(f"cp secret.txt kept; echo x >> secret.txt; {stop}", env=world.sibling_env)
    harm = " ".join(await world.harm())
    for line in ("The sibling changed", "+stopped", "+/workspace/kept"):
        assert line in harm, line
    await world.sibling.exec("cp kept secret.txt; rm kept; kill -CONT $PID; sleep .1", env=world.sibling_env)
    await world.harm()


@pytest.mark.asyncio(loop_scope="session")
@each_provider()
async def test_what_outlives_a_sandbox_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.arena() as scene:
        assert scene.resident in processes_in(scene.namespaces["pid"])
        assert scene.groups
        with monkeypatch.context() as patched:
            patched.setattr(scene.box, "stop", lambda: asyncio.sleep(0))
            left = await world.end(scene.box, dataclasses.replace(scene, pin=os.dup(scene.pin)), seconds=0.1)
        assert "1 processes outlived their sandbox" in left[0]


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("control\ta\ndid\tb\n", "THE ATTACK SUCCEEDED"),
        ("broken\ta\nrefused\tb\tEPERM\n", "tool does not work"),
        ("refused\tb\tEPERM\n", "without a control"),
        ("control\ta\n", "attempted nothing"),
        ("control\ta\nrefused\tb\tENOSYS\n", "not because it was refused"),
        ("", "without a control"),
    ],
)
def test_an_attack_that_shows_nothing_does_not_count(said: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        judge(Attack("a", ""), ExecResult(0, said.encode(), b"", 0.0))
    with pytest.raises(AssertionError, match="is broken"):
        judge(Attack("a", ""), ExecResult(1, b"control\ta\nrefused\tb\tEPERM\n", b"SyntaxError", 0.0))
    judge(Attack("a", ""), ExecResult(0, b"control\ta\nrefused\tb\tEPERM\n", b"", 0.0))
