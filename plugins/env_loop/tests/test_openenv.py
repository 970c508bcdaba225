"""Real servers of OpenEnv, from its own template and from `obedient_env`, in a venv of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from env_table import Table, children, first, source, until
from support.index_venvs import python_with
from support.ports import held_port

from ale.errors import ConfigError
from ale.messages import Message, ToolSpec
from ale.rollout.episode import StageInfo
from ale.rollout.scheduler import Rollouts
from ale.specs.algorithm import RolloutRequest
from ale.specs.start import Demonstration, Reply, Responder
from ale.store.run_store import RunStore
from ale.trajectory import Trajectory

Tables = Callable[..., Table]
OBEDIENT = Path(__file__).with_name("obedient_env")
RL = StageInfo("rl", 1, "train", 1.0)
pytestmark = [pytest.mark.network, pytest.mark.slow]

LOGGED = """
    import json, os, sys
    sys.path.insert(0, {folder!r})
    from server.app import app as inner

    async def app(scope, receive, send):
        async def log(message):
            text = message.get("text")
            if message["type"] == "websocket.send" and text:
                data = json.loads(text)
                with open({log!r}, "a") as file:
                    file.write(json.dumps([id(send), data["type"], data["data"].get("reward")]) + "\\n")
            await send(message)
        await inner(scope, receive, log if scope["type"] == "websocket" else send)
"""
"""An ASGI app around the template's, which writes down what the server sends."""


@pytest.fixture(scope="module")
def python() -> str:
    """The Python that has OpenEnv."""
    return str(python_with("openenv==0.10.0"))


@pytest.fixture(scope="module")
def template(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment that `openenv init` makes, unchanged."""
    folder = tmp_path_factory.mktemp("openenv")
    command = [python, "-m", "openenv.cli", "init", "echo_env", "--output-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=folder)
    (manifest,) = folder.glob("**/openenv.yaml")
    assert done.returncode == 0, done.stderr
    return manifest.parent


@pytest.fixture
def logged(template: Path, tmp_path: Path) -> Path:
    """A folder whose app is the template's, and `log`, what its servers sent."""
    folder = tmp_path / "logged_env"
    folder.mkdir()
    text = textwrap.dedent(LOGGED).format(folder=str(template), log=str(folder / "log"))
    (folder / "logged.py").write_text(text)
    (folder / "openenv.yaml").write_text("spec_version: 1\nname: logged_env\napp: logged:app\n")
    return folder


@contextmanager
def serve(python: str, folder: Path, app: str) -> Iterator[str]:
    """A server that somebody else started; its URL."""
    with ExitStack() as stack:
        probe, port = stack.enter_context(socket.socket()), stack.enter_context(held_port())
        command = [python, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
        server = stack.enter_context(subprocess.Popen(command, cwd=folder))
        try:
            deadline = time.monotonic() + 300
            while probe.connect_ex(("127.0.0.1", port)):
                assert server.poll() is None, "the server must start"
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


@pytest.fixture(scope="module")
def running(python: str) -> Iterator[str]:
    """The URL of a server of `obedient_env`, which has two sessions."""
    with serve(python, OBEDIENT, "app:app") as url:
        yield url


def say_in_turn(answers: Sequence[str]) -> Demonstration:
    """A policy that gives these answers."""

    def begin() -> Responder:
        left = iter(answers)

        async def respond(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply:
            return Reply(Message("assistant", next(left)))

        return respond

    return Demonstration(begin)


def rewards(trajectory: Trajectory) -> list[float | None]:
    """The rewards of the steps."""
    assert trajectory.failure is None, trajectory.failure
    return [o.reward for o in trajectory.observations]


async def test_64_episodes_of_the_template_have_the_rewards_in_the_servers_log(
    table: Tables, python: str, logged: Path, tmp_path: Path
) -> None:
    tasks = first(source(f"openenv:{logged}", python=python, observation="echoed_message"), 64)
    here = table(max_turns=3)
    starts = [say_in_turn(["x" * (i % 7), "größe ✓", "y" * (i % 13)]) for i in range(64)]
    before = children()
    with RunStore.create(tmp_path / "run") as store:
        rollouts = Rollouts(here.episodes(concurrency=2), store)
        requests = [RolloutRequest(t, t.id, 1, start) for t, start in zip(tasks, starts, strict=True)]
        done = await rollouts.run(requests, RL)
    assert len(done) == 64
    assert len(children() - before) == 2, "a server for each of the two that run at once"
    assert [o.text for o in done[20].observations] == ["xxxxxx", "größe ✓", "yyyyyyy"]
    log = [json.loads(line) for line in (logged / "log").read_text().splitlines()]
    assert {kind for _, kind, _ in log} == {"observation"}
    assert len(log) == 64 * 4, "a reset and three steps"
    assert sum(t.reward.value for t in done if t.reward) == pytest.approx(sum(reward for _, _, reward in log))
    wanted = [min(0.1 * len(o.arguments["action"]), 1.0) for t in done for o in t.observations]
    assert [r for t in done for r in rewards(t)] == pytest.approx(wanted)


async def test_episodes_wait_for_the_only_session_of_a_running_server(
    table: Tables, python: str, template: Path
) -> None:
    with serve(python, template, "server.app:app") as url:
        tasks = first(source(f"openenv:{url}"), 12)
        here = table(max_turns=2)
        played = await asyncio.gather(*(here.play(task, ["abc", "defgh"]) for task in tasks))
        assert [rewards(t) for t in played] == [pytest.approx([0.3, 0.5])] * 12
        assert json.loads(played[0].observations[1].text) == {"echoed_message": "defgh", "message_length": 5}
        by_http = await here.play(first(source(f"openenv-http:{url}"))[0], ["abc", "defgh"])
        assert rewards(by_http) == pytest.approx([0.3, 0.5])
        busy = table(max_turns=1, start_timeout_s=0.3)
        async with here.scaffold._environments.open(source(f"openenv:{url}").config) as env:
            await env.reset(0, None)
            refused = await busy.play(tasks[0], ["abc"])
    assert refused.failure is not None
    assert refused.failure.retryable
    assert "had no free session within 0.3 s; lower rollout.concurrency" in refused.failure.message
    gone = await here.play(tasks[0], ["abc"])
    assert gone.failure is not None
    assert gone.failure.retryable


async def test_a_late_answer_is_read_by_nobody(table: Tables, running: str) -> None:
    """The server goes on, and answers later: to a connection that is closed."""
    here = table(timeout_s=4.0)
    one, two = first(source(f"openenv:{running}"), 2)
    late = await here.play(one, ["sleep 4.6", "end"])
    assert late.failure is not None
    assert (late.failure.kind, late.failure.retryable) == ("sandbox", True)
    assert "did not answer 'step' within 4 s" in late.failure.message
    following = await here.play(two, ["first", "sleep 0.7", "end"])
    texts = [json.loads(o.text) for o in following.observations]
    assert [t["heard"] for t in texts] == [["first"], ["first", "sleep 0.7"], ["first", "sleep 0.7", "end"]]
    assert {t["seed"] for t in texts} == {two.metadata["seed"]}


async def test_servers_killed_in_a_step_are_made_anew_and_none_is_a_zero(
    table: Tables, python: str, tmp_path: Path
) -> None:
    tasks = first(source(f"openenv:{OBEDIENT}", python=python), 12)
    here = table()
    before = children()

    async def kill() -> None:
        await until(lambda: len(children() - before) == 2, 60)
        for _ in range(2):
            await until(lambda: here.scaffold._environments._used, 60)
            await asyncio.sleep(0.5)
            for process in list(here.scaffold._environments._used)[:1]:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    with RunStore.create(tmp_path / "run") as store:
        rollouts = Rollouts(here.episodes(concurrency=2, max_resamples=6), store)
        killing = asyncio.create_task(kill())
        start = say_in_turn(["sleep 0.4", "sleep 0.4", "end"])
        done = await rollouts.run([RolloutRequest(task, task.id, 1, start) for task in tasks], RL)
        await killing
        counts = rollouts.metrics("rl")
    assert counts["resampled"] >= 1
    assert [rewards(t) for t in done] == [[1.0, 1.0, 1.0]] * 12


async def test_actions_faults_and_rewards_that_are_left_out(table: Tables, running: str) -> None:
    play = partial(table().play, first(source(f"openenv:{running}"))[0])
    played = await play(['{"word": "twice", "times": 2}', '{"word": "x", "times": 0}', "silent", "end"])
    assert rewards(played) == [2.0, 0.0, 0.0, 1.0]
    assert [c.error.kind if c.error else None for c in played.chunks] == [None, "illegal_call", None, None]
    assert "times: Input should be greater than or equal to 1" in played.observations[1].text
    assert json.loads(played.observations[-1].text)["heard"] == ["twice", "twice", "silent", "end"]
    broken = await play(["raise"])
    assert broken.failure is not None
    assert (broken.failure.kind, broken.failure.retryable) == ("task", False)
    assert "failed: the cup is broken." in broken.failure.message
    assert rewards(await play(["end"])) == [1.0]


async def test_faults_by_http(table: Tables, running: str) -> None:
    here = table(timeout_s=4.0)
    (task,) = first(source(f"openenv-http:{running}"))
    played = await here.play(task, ['{"word": "x", "times": 0}', "end"])
    assert [c.error.kind if c.error else None for c in played.chunks] == ["illegal_call", None]
    faults = [(await here.play(task, [answer])).failure for answer in ("raise", "sleep 6")]
    assert [(f.kind, f.retryable) for f in faults if f] == [("task", False), ("sandbox", True)]


async def test_a_folder_that_cannot_be_served_is_a_sentence(table: Tables, python: str, tmp_path: Path) -> None:
    for manifest, sentence in {
        "name: x\n": "must name the app to serve, such as `app: server.app:app`; it has None.",
        "app: gone:app\n": "cannot be loaded: ModuleNotFoundError: No module named 'gone'",
    }.items():
        (tmp_path / "openenv.yaml").write_text(manifest)
        (task,) = first(source(f"openenv:{tmp_path}", python=python))
        with pytest.raises(ConfigError) as caught:
            await table().play(task, ["x"])
        assert sentence in str(caught.value)
