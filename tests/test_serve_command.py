"""These tests run `ale endpoint serve` as a user does."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ale_command import ALE, ale
from upstreams import Faulty, hangs, real, says

from ale_endpoint.command import routes_of
from ale_endpoint.recording import read_recording

GO: Any = [{"role": "user", "content": "go"}]


class Served:
    """A running command: where it listens, what it has printed."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder = process, folder
        self.printed = ""
        assert process.stdout is not None
        while "Ctrl-C ends it." not in self.printed:
            line = process.stdout.readline()
            assert line, self.printed
            self.printed += line
        found = re.search(r"listening at  (http://\S+)/v1", self.printed)
        assert found is not None
        self.origin = found[1]

    async def ask(self, text: str = "go", key: str = "me", **more: Any) -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            return await client.post(f"{self.origin}/v1/chat/completions", json=body, headers=headers)

    def arguments(self) -> str:
        """What every user of the machine may see of the process."""
        return Path(f"/proc/{self.process.pid}/cmdline").read_text()

    def end(self, number: signal.Signals = signal.SIGINT) -> float:
        """Send a signal; the seconds until the command had ended, well."""
        began = time.monotonic()
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=20)
        self.printed += rest
        assert self.process.returncode == 0, self.printed
        assert "Traceback" not in self.printed, self.printed
        return time.monotonic() - began


@contextmanager
def served(folder: Path, *arguments: str, **variables: str) -> Iterator[Served]:
    command = [str(ALE), "endpoint", "serve", "--port", "0", *arguments]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Served(process, folder)
        finally:
            process.kill()


async def test_it_forwards_records_replays_and_keeps_the_key_to_itself(tmp_path: Path) -> None:
    async with real() as (session, engine):
        engine.texts = ["one", "two"]
        with served(
            tmp_path, "--upstream", session.base_url, "--key-env", "TEACHER", TEACHER=session.api_key
        ) as forward:
            assert session.base_url in forward.printed
            assert "the environment variable TEACHER" in forward.printed
            assert "recording to  calls.jsonl" in forward.printed
            arguments = forward.arguments()
            assert [(await forward.ask(text)).json()["choices"][0]["message"]["content"] for text in ("a", "b")] == [
                "one",
                "two",
            ]
            assert (await forward.ask("c")).status_code == 503
            forward.process.send_signal(signal.SIGKILL)  # nothing that was answered is lost
            forward.process.wait()
        recorded = list(read_recording(tmp_path / "calls.jsonl"))
        assert [call.error is None for call in recorded] == [True, True, False]
        told = forward.printed + arguments + (tmp_path / "calls.jsonl").read_text()
        assert session.api_key not in told
    with served(tmp_path, "--replay", "calls.jsonl") as replay:
        assert "recording" not in replay.printed
        assert [(await replay.ask(text)).json()["choices"][0]["message"]["content"] for text in ("b", "a")] == [
            "two",
            "one",
        ]
        missing = await replay.ask("d")
        assert missing.status_code == 404
        assert "the nearest is call" in missing.json()["error"]["message"]
        replay.end()
        assert "ended: calls 2 replayed, 1 failed" in replay.printed
    assert len(list(read_recording(tmp_path / "calls.jsonl"))) == 3


async def test_answers_are_no_longer_than_it_allows_and_what_it_refuses_is_printed(tmp_path: Path) -> None:
    picture = [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
    async with Faulty().up() as server:
        server.script = [says()] * 4
        options = ("--upstream", server.url, "--max-tokens", "50", "--no-pictures")
        with served(tmp_path, *options) as forward:
            for more in (
                {},
                {"max_tokens": 7},
                {"max_tokens": 999},
                {"messages": [{"role": "user", "content": picture}]},
            ):
                assert (await forward.ask(**more)).status_code == 200
            assert (await forward.ask(messages="hi")).status_code == 400
            await asyncio.to_thread(forward.end)
    assert [body["max_tokens"] for body in server.bodies] == [50, 7, 50, 50]
    assert server.bodies[3]["messages"][0]["content"] == "[picture left out]"
    assert "a request was refused: 'messages' must be a list, not a text." in forward.printed
    assert "ended: calls 4 answered, 1 refused" in forward.printed
    *_, refused = read_recording(tmp_path / "calls.jsonl")
    assert refused.error == "'messages' must be a list, not a text."


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_at_once_also_when_somebody_waits(tmp_path: Path, number: signal.Signals) -> None:
    async with Faulty().up() as server:
        server.script = [hangs]
        with served(tmp_path, "--upstream", server.url) as forward:
            waiting = asyncio.create_task(forward.ask())
            await server.asked.wait()
            took = await asyncio.to_thread(forward.end, number)
            await asyncio.gather(waiting, return_exceptions=True)
    assert took < 20
    assert list(read_recording(tmp_path / "calls.jsonl")) == []


async def test_others_than_this_machine_need_a_key(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").touch()
    with served(
        tmp_path, "--replay", "none.jsonl", "--host", "0.0.0.0", "--require-key", "HOUSE", HOUSE="the-key"
    ) as house:
        house.origin = house.origin.replace("0.0.0.0", "127.0.0.1")
        assert (await house.ask(key="")).status_code == 401
        assert (await house.ask(key="guess")).status_code == 401
        assert [(await house.ask(key=key)).status_code for key in ("the-key", "the-key:one")] == [404, 404]
        house.end()
        assert "the-key" not in house.printed
    with served(tmp_path, "--replay", "none.jsonl") as here:
        async with httpx.AsyncClient(trust_env=False) as client:
            strange = await client.get(f"{here.origin}/v1/models", headers={"host": "rebound.example"})
        assert strange.status_code == 400
        here.end()


def test_routes_come_in_their_order_and_each_key_goes_to_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", " key-one\n")
    monkeypatch.setenv("TWO", "key-two")
    named = ["gpt-*=https://one.example/v1", "small=http://two.example/v1#Qwen/Qwen3-8B"]
    routes = routes_of("http://rest.example/v1", named, ["gpt-*=ONE", "TWO"])
    assert [(r.pattern, r.url, r.model, r.key) for r in routes] == [
        ("gpt-*", "https://one.example/v1", None, "key-one"),
        ("small", "http://two.example/v1", "Qwen/Qwen3-8B", None),
        ("*", "http://rest.example/v1", None, "key-two"),
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "There is nothing to serve"),
        (["--upstream", "host/v1"], "The upstream 'host/v1' must be a URL"),
        (["--upstream", "http://me:pw@host/v1"], "has a user or a password in its URL"),
        (
            ["--upstream", "http://h/v1", "--key-env", "NOT_SET_HERE"],
            "names the environment variable NOT_SET_HERE, which is not set",
        ),
        (
            ["--upstream", "http://h/v1", "--key-env", "sk-pw-1"],
            "takes the name of an environment variable that holds the key",
        ),
        (["--route", "gpt-*"], "write NAME=URL"),
        (["--route", "a=http://h", "--key-env", "PATH"], "it goes with --upstream"),
        (["--route", "alpha=http://h", "--key-env", "alpa=PATH"], "there is no route 'alpa'. Did you mean 'alpha'?"),
        (["--route", "a=http://h", "--route", "a=http://i"], "there is a route 'a' already"),
        (["--upstream", "http://h", "--host", "0.0.0.0"], "--host 0.0.0.0 lets others use your keys"),
        (["--replay", "nowhere.jsonl"], "The recording nowhere.jsonl cannot be read"),
        (["--upstream", "http://h", "--out", "no/folder.jsonl"], "The recording no/folder.jsonl cannot be written"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    done = ale("endpoint", "serve", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert "pw" not in done.stderr


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = ale("endpoint", "serve", "--replay", "none.jsonl", "--port", str(taken.getsockname()[1]), cwd=tmp_path)
    assert done.returncode == 2
    assert "--port takes another" in done.stderr


async def test_it_listens_at_a_unix_socket_too(tmp_path: Path) -> None:
    place = tmp_path / "sock"
    async with real() as (session, engine):
        engine.texts = ["one"]
        options = ["--upstream", session.base_url, "--key-env", "TEACHER", "--unix", str(place)]
        with served(tmp_path, *options, TEACHER=session.api_key) as forward:
            assert f"{place} (Unix socket)" in forward.printed
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(place))) as client:
                url = "http://127.0.0.1:8600/v1/chat/completions"
                answer = await client.post(url, json={"model": "m", "messages": GO})
            assert answer.json()["choices"][0]["message"]["content"] == "one"
            await asyncio.to_thread(forward.end)
    assert not place.exists()
