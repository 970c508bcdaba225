"""E2B's own SDK, unmodified, against a whole service with local sandboxes: what its users do, sync and async."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from e2b import (
    AsyncSandbox,
    CommandExitException,
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    SandboxState,
    SandboxUnreachableException,
    TimeoutException,
)
from service_process import Service

from ale_rock.e2b import DOMAIN

pytestmark = [pytest.mark.bwrap, pytest.mark.slow]
Create = Callable[..., Sandbox]


@pytest.fixture(autouse=True)
def settings(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user of E2B sets."""
    monkeypatch.setenv("E2B_API_KEY", "any")
    monkeypatch.setenv("E2B_API_URL", service.url)
    monkeypatch.setenv("E2B_SANDBOX_URL", service.url)


@pytest.fixture(scope="module")
def shared(service: Service) -> Iterator[Sandbox]:
    """A sandbox for tests that leave nothing behind which others would see."""
    at = {"api_key": "any", "api_url": service.url, "sandbox_url": service.url}
    with Sandbox.create(timeout=300, metadata={"kind": "shared"}, envs={"GREETING": "good day"}, **at) as box:
        yield box


# --- commands


def test_a_command_has_its_environment_folder_and_streams(shared: Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    done = shared.commands.run(
        "echo $GREETING $X; pwd; echo ~; echo problem >&2",
        envs={"X": "1"},
        cwd="/tmp",
        user="root",
        on_stdout=out.append,
        on_stderr=err.append,
    )
    assert (done.stdout, done.stderr, done.exit_code, done.error) == (
        "good day 1\n/tmp\n/home/user\n",
        "problem\n",
        0,
        None,
    )
    assert ("".join(out), "".join(err)) == (done.stdout, done.stderr)
    assert shared.commands.run("pwd").stdout == "/home/user\n"


def test_a_command_that_fails_raises_with_its_output(shared: Sandbox) -> None:
    with pytest.raises(CommandExitException) as failed:
        shared.commands.run("echo out; echo why >&2; exit 7")
    error = failed.value
    assert (error.exit_code, error.stdout, error.stderr, error.error) == (7, "out\n", "why\n", "exit status 7")


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(shared: Sandbox) -> None:
    out: list[str] = []
    with pytest.raises(TimeoutException):
        shared.commands.run("sleep 3456 & echo $!; wait", timeout=0.5, on_stdout=out.append)
    left = f"while kill -0 {''.join(out).strip()}; do sleep 0.05; done 2>/dev/null"
    assert shared.commands.run(left, timeout=20).exit_code == 0
    assert shared.commands.list() == []


def test_a_command_in_the_background_goes_on_and_can_be_joined_and_killed(shared: Sandbox) -> None:
    handle = shared.commands.run("echo one; sleep 0.4; echo two", background=True, timeout=0)
    [listed] = shared.commands.list()
    assert (listed.pid, listed.args) == (handle.pid, ["-l", "-c", "echo one; sleep 0.4; echo two"])
    assert next(iter(handle)) == ("one\n", None, None)
    handle.disconnect()
    joined = shared.commands.connect(handle.pid)
    assert joined.wait().stdout == "two\n", "a reader gets what comes after it"
    with pytest.raises(NotFoundException, match=str(handle.pid)):
        shared.commands.connect(handle.pid)

    handle = shared.commands.run("sleep 100; echo never", background=True)
    assert shared.commands.kill(handle.pid)
    with pytest.raises(CommandExitException) as killed:
        handle.wait()
    assert (killed.value.exit_code, killed.value.error, killed.value.stdout) == (-1, "signal: killed", "")
    assert not shared.commands.kill(handle.pid)
    with pytest.raises(CommandExitException) as ended:
        shared.commands.run("exit 137")
    assert (ended.value.exit_code, ended.value.error) == (137, "exit status 137"), "no signal was sent"


def test_standard_input_comes_piece_by_piece_and_ends(shared: Sandbox) -> None:
    handle = shared.commands.run("cat; echo end", background=True, stdin=True)
    handle.send_stdin("größe\n")
    shared.commands.send_stdin(handle.pid, b"two\n")
    shared.commands.stream_input(handle.pid, ["x" * 100_000, "\n"])
    handle.close_stdin()
    assert handle.wait().stdout == "größe\ntwo\n" + "x" * 100_000 + "\nend\n"
    assert shared.commands.run("cat; find /tmp -maxdepth 1 -type p").stdout == "", (
        "without stdin there is none, and no pipe is left"
    )
    unread = shared.commands.run("sleep 100", background=True)
    with pytest.raises(SandboxException, match="stdin=True"):
        unread.send_stdin("x")
    assert unread.kill()
    waits = shared.commands.run("sh -c 'cat >/dev/null & wait; exit 4'", background=True, stdin=True)
    waits.close_stdin()
    with pytest.raises(CommandExitException) as ended:
        waits.wait()
    assert ended.value.exit_code == 4, "the holder of the input is no child that `wait` sees"


def test_output_of_any_size_and_bytes_comes_whole(shared: Sandbox) -> None:
    done = shared.commands.run("head -c 3000000 /dev/zero | tr '\\0' x; printf 'a\\377b' >&2")
    assert (len(done.stdout), done.stderr) == (3_000_000, "a\ufffdb")


def test_a_process_that_cannot_start_says_why(shared: Sandbox) -> None:
    with pytest.raises(InvalidArgumentException, match=r"/nope.*No such file"):
        shared.commands.run("true", cwd="/nope")
    with pytest.raises(InvalidArgumentException, match="own user, and not as 'anna'"):
        shared.commands.run("true", user="anna")
    with pytest.raises(InvalidArgumentException, match="environment variable"):
        shared.commands.run("true", envs={"A=B": "1"})


def test_a_terminal_has_a_size_a_shell_and_an_end(shared: Sandbox) -> None:
    seen: list[bytes] = []
    terminal = shared.pty.create(PtySize(rows=24, cols=80), cwd="/tmp", envs={"PS1": "$ "})
    shared.pty.resize(terminal.pid, PtySize(rows=33, cols=101))
    shared.pty.send_stdin(terminal.pid, b"stty size; pwd; echo $TERM; exit 3\n")
    with pytest.raises(CommandExitException) as ended:
        terminal.wait(on_pty=seen.append)
    assert ended.value.exit_code == 3
    assert b"33 101\r\n/tmp\r\n" in (text := b"".join(seen))
    assert b"xterm-256color" in text
    terminal = shared.pty.create(PtySize(rows=24, cols=80))
    assert shared.pty.kill(terminal.pid)


# --- files


def test_files_come_back_as_they_were_written(shared: Sandbox) -> None:
    written = shared.files.write("text.txt", "größe ✓\n")
    assert (written.name, written.type, written.path) == ("text.txt", FileType.FILE, "/home/user/text.txt")
    assert shared.files.read("~/text.txt") == "größe ✓\n"
    large = os.urandom(6 << 20)
    shared.files.write("/tmp/deep/er/large", large)
    assert shared.files.read("/tmp/deep/er/large", format="bytes") == large
    shared.files.write("/tmp/streamed", io.BytesIO(large))
    with shared.files.read("/tmp/streamed", format="stream") as pieces:
        assert b"".join(pieces) == large
    shared.files.write("/tmp/zipped", "ab" * 100_000, gzip=True)
    assert shared.files.read("/tmp/zipped") == "ab" * 100_000
    many = shared.files.write_files([{"path": f"/tmp/many/größe {n}", "data": f"{n}"} for n in range(30)])
    assert [each.path for each in many] == [f"/tmp/many/größe {n}" for n in range(30)]
    assert shared.files.read("/tmp/many/größe 29") == "29"
    assert shared.commands.run("cat '/tmp/many/größe 7'").stdout == "7"
    shared.files.remove("/tmp/many")


def test_folders_are_listed_made_renamed_and_removed(shared: Sandbox) -> None:
    assert shared.files.make_dir("/tmp/t/in")
    assert not shared.files.make_dir("/tmp/t/in")
    shared.files.write("/tmp/t/in/new\nline", "12345")
    shared.commands.run("ln -s in /tmp/t/link; chmod 750 /tmp/t/in")
    assert [(each.name, each.type) for each in shared.files.list("/tmp/t")] == [
        ("in", FileType.DIR),
        ("link", FileType.SYMLINK),
    ]
    assert [each.path for each in shared.files.list("/tmp/t", depth=2)][1] == "/tmp/t/in/new\nline"
    assert [each.name for each in shared.files.list("/tmp/t/link")] == ["new\nline"]
    info = shared.files.get_info("/tmp/t/in/new\nline")
    assert (info.size, info.permissions, info.owner, info.type) == (5, "-rw-r--r--", "agent", FileType.FILE)
    assert abs(info.modified_time.timestamp() - time.time()) < 600
    assert (shared.files.get_info("/tmp/t/in").mode, shared.files.get_info("/tmp/t/link").symlink_target) == (
        0o750,
        "/tmp/t/in",
    )
    moved = shared.files.rename("/tmp/t/in", "/tmp/u/out")
    assert (moved.path, moved.type, shared.files.exists("/tmp/t/in")) == ("/tmp/u/out", FileType.DIR, False)
    shared.files.remove("/tmp/u")
    shared.files.remove("/tmp/t")
    assert not shared.files.exists("/tmp/u")


def test_what_cannot_be_done_with_a_file_is_said(shared: Sandbox) -> None:
    for call in (shared.files.read, shared.files.list, shared.files.get_info):
        with pytest.raises(FileNotFoundException, match="/nope"):
            call("/nope")
    with pytest.raises(FileNotFoundException, match="/nope"):
        shared.files.rename("/nope", "/tmp/x")
    with pytest.raises(InvalidArgumentException, match="is a folder"):
        shared.files.read("/tmp")
    with pytest.raises(InvalidArgumentException, match="is no folder"):
        shared.files.list("/etc/passwd")
    with pytest.raises(InvalidArgumentException, match="could not write /proc/x"):
        shared.files.write("/proc/x", "1")
    with pytest.raises(SandboxException, match="/proc/x"):
        shared.files.make_dir("/proc/x")
    with pytest.raises(SandboxException, match="watches no folders"):
        shared.files.watch_dir("/tmp")


# --- ports


def test_a_program_that_listens_is_reached_by_the_sandbox_url(service: Service, shared: Sandbox) -> None:
    shared.files.write("/home/user/page", "hello")
    server = shared.commands.run("python3 -m http.server 8123 --bind 127.0.0.1", background=True, timeout=0)
    assert shared.get_host(8123) == f"8123-{shared.sandbox_id}.{DOMAIN}"
    by_headers = {"E2b-Sandbox-Id": shared.sandbox_id, "E2b-Sandbox-Port": "8123"}
    for headers in ({"Host": shared.get_host(8123)}, by_headers):
        for _ in range(100):
            answer = httpx.get(f"{service.url}/page?x=1", headers=headers)
            if answer.status_code != 502:
                break
            time.sleep(0.05)
        assert (answer.status_code, answer.text) == (200, "hello")
    assert server.kill()


# --- sandboxes


def test_a_sandbox_is_described_listed_and_killed() -> None:
    box = Sandbox.create(timeout=60, metadata={"who": "anna b", "x": "ü&="})
    info = box.get_info()
    assert (info.template_id, info.metadata, info.state) == (
        "base",
        {"who": "anna b", "x": "ü&="},
        SandboxState.RUNNING,
    )
    assert 50 < (info.end_at - info.started_at).total_seconds() <= 61
    box.set_timeout(200)
    assert (box.get_info().end_at - info.started_at).total_seconds() > 190
    [found] = Sandbox.list(query=SandboxQuery(metadata={"x": "ü&="})).next_items()
    assert found.sandbox_id == box.sandbox_id
    assert Sandbox.list(query=SandboxQuery(metadata={"who": "bert"})).next_items() == []
    paged = Sandbox.list(limit=1)
    seen = []
    while paged.has_next:
        seen += [each.sandbox_id for each in paged.next_items()]
    assert box.sandbox_id in seen
    assert len(seen) == len(set(seen))
    [used] = box.get_metrics()
    assert used.mem_used > 0
    assert box.is_running()
    assert box.kill()
    assert not box.kill()
    assert not box.is_running()
    with pytest.raises(SandboxNotRunningException):
        box.commands.run("true")
    with pytest.raises(SandboxNotFoundException):
        box.get_info()
    with pytest.raises(SandboxNotFoundException):
        box.set_timeout(10)


def test_a_paused_sandbox_comes_back_with_its_files_and_environment() -> None:
    box = Sandbox.create(timeout=60, envs={"KEY": "value"}, metadata={"kind": "paused"})
    box.files.write("kept", "1")
    with pytest.raises(SandboxException, match="'filesystem'"):
        box.pause(mode="full")
    assert box.pause()
    assert not box.pause(), "it is paused already"
    query = SandboxQuery(metadata={"kind": "paused"}, state=[SandboxState.PAUSED])
    assert [each.sandbox_id for each in Sandbox.list(query=query).next_items()] == [box.sandbox_id]
    with pytest.raises(SandboxNotRunningException, match="paused"):
        box.commands.run("true")
    again = Sandbox.connect(box.sandbox_id, timeout=90)
    assert (again.files.read("kept"), again.commands.run("echo $KEY").stdout) == ("1", "value\n")
    assert box.commands.run("cat kept").stdout == "1", "the first handle works again, too"
    assert 80 < (again.get_info().end_at.timestamp() - time.time()) < 95
    Sandbox.connect(box.sandbox_id, timeout=5)
    assert again.get_info().end_at.timestamp() - time.time() > 60, "connecting does not shorten a life"
    assert again.pause()
    assert again.kill()
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(box.sandbox_id)


def test_a_sandbox_whose_time_is_over_is_ended_or_paused() -> None:
    ended = Sandbox.create(timeout=60)
    paused = Sandbox.create(timeout=60, lifecycle={"on_timeout": "pause"})
    assert paused.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": False}
    running = ended.commands.run("sleep 100", background=True)
    for box in (ended, paused):
        box.set_timeout(0)
    with pytest.raises(SandboxNotRunningException):
        running.wait()
    for _ in range(200):
        if (found := [each for each in Sandbox.list().next_items() if each.sandbox_id == paused.sandbox_id]) and (
            found[0].state == SandboxState.PAUSED
        ):
            break
        time.sleep(0.05)
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(ended.sandbox_id)
    again = Sandbox.connect(paused.sandbox_id)
    assert again.commands.run("echo back").stdout == "back\n"
    assert again.kill()


def test_what_the_service_does_not_offer_is_refused_by_its_name(shared: Sandbox) -> None:
    for asked, name in {
        "template": "images",
        "volume_mounts": "volumeMounts",
        "network": "egressProxy",
        "lifecycle": "autoResume",
    }.items():
        given = {
            "template": "python:3.11",
            "volume_mounts": {"/data": "volume"},
            "network": {"egress_proxy": {"address": "127.0.0.1:1"}},
            "lifecycle": {"on_timeout": "pause", "auto_resume": True},
        }[asked]
        with pytest.raises(SandboxException, match=name):
            Sandbox.create(**{asked: given})
    for call in (shared.create_snapshot, shared.fork, lambda: shared.update_network({"allow_out": ["a.example"]})):
        with pytest.raises(SandboxException, match="does not offer"):
            call()


def test_another_way_than_the_two_urls_is_refused_in_a_sentence(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("E2B_SANDBOX_URL")
    box = Sandbox.create(timeout=60)
    with pytest.raises(SandboxUnreachableException, match="set-e2b-sandbox-url-to-the-url-of-this-service"):
        box.commands.run("true")
    assert box.kill()
    bare = httpx.post(f"{service.url}/process.Process/List", json={})
    assert (bare.status_code, "E2B_SANDBOX_URL" in bare.json()["message"]) == (400, True)
    monkeypatch.setenv("E2B_SANDBOX_URL", service.url)
    monkeypatch.setenv("E2B_DEBUG", "true")
    with pytest.raises(InvalidArgumentException, match="E2B_DEBUG"):
        Sandbox.create().commands.run("true")


async def test_the_async_sandbox_does_the_same() -> None:
    async with await AsyncSandbox.create(timeout=60) as box:
        out: list[str] = []
        done = await box.commands.run("echo 1; echo 2 >&2", on_stdout=out.append)
        assert (done.stdout, done.stderr, out) == ("1\n", "2\n", ["1\n"])
        with pytest.raises(CommandExitException):
            await box.commands.run("false")
        handle = await box.commands.run("cat", background=True, stdin=True)
        await handle.send_stdin("typed\n")
        await handle.close_stdin()
        assert (await handle.wait()).stdout == "typed\n"
        await box.files.write("a", b"bytes")
        assert await box.files.read("a", format="bytes") == b"bytes"
        assert [each.name for each in await box.files.list(".")] == ["a"]
        assert await box.pause()
        await box.connect()
        assert await box.files.read("a") == "bytes"
        with pytest.raises(SandboxException, match="watches no folders"):
            await box.files.watch_dir(".", on_event=print)
    assert not await box.is_running()
