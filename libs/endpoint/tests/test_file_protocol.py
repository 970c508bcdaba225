"""The trainer's side of the file protocol, over a folder: with our service, with the public one, and beside faults."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from file_protocol_client import (
    Service,
    Talker,
    body_of,
    completion,
    eventually,
    of_kind,
    requested,
    respond,
    serving,
    session_of,
)
from support.ports import held_port

from ale.errors import EngineError
from ale.session.session import RecordedSession
from ale_endpoint.file_protocol import FolderLink, answer_log
from ale_endpoint.relays.request_log import SESSION_END, append, encode
from ale_endpoint.session_server import SessionServer

TORN = 'LLM_REQUEST_END{"index": 7}\nLLM_RESPONSE_STARTSESSION_END\u2028\x85\x0b\x0c\0\r'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "LLMService.log"


@pytest.fixture
def engine() -> Talker:
    return Talker()


@pytest.fixture
def session(engine: Talker) -> RecordedSession:
    return session_of(engine)


@asynccontextmanager
async def trainer(session: RecordedSession, log: Path, **more: Any) -> AsyncIterator[list[str]]:
    """The trainer's side at work; what it tells of. At the end it is stopped as a killed process is: without a word."""
    told: list[str] = []
    task = asyncio.create_task(answer_log(session, FolderLink(log), report=told.append, **more))
    try:
        yield told
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def said(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


async def converse(client: openai.AsyncOpenAI, stream: bool) -> None:
    """Three turns of a conversation, each with the whole of it before."""
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    for n in range(3):
        messages.append({"role": "user", "content": f"{TORN} turn {n}"})
        if stream:
            events = await client.chat.completions.create(model="m", messages=messages, stream=True)
            text = "".join([event.choices[0].delta.content or "" async for event in events])
        else:
            text = (await client.chat.completions.create(model="m", messages=messages)).choices[0].message.content or ""
        messages.append({"role": "assistant", "content": text})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_is_the_same_to_the_token_as_over_http(
    log: Path, session: RecordedSession, stream: bool
) -> None:
    async with serving(log) as service, trainer(session, log) as told, service.openai() as client:
        await converse(client, stream)
    over_http = session_of(Talker())
    async with SessionServer() as server:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        with server.open(over_http) as access:
            async with openai.AsyncOpenAI(base_url=access.base_url, api_key=access.api_key, http_client=http) as client:
                await converse(client, stream)
    assert len(session.recorder.sequences) == 1
    assert session.recorder.sequences == over_http.recorder.sequences
    assert session.recorder.chunks == over_http.recorder.chunks
    assert told == []


async def test_many_requests_are_answered_at_once_but_no_more_than_may_be(
    log: Path, session: RecordedSession, engine: Talker
) -> None:
    engine.gate = asyncio.Event()
    async with serving(log) as service, trainer(session, log, at_once=8):
        asking = [asyncio.create_task(service.ask(f"{TORN} {n}")) for n in range(40)]
        await requested(log, 40)
        await eventually(lambda: engine.at_work == 8)
        engine.gate.set()
        answers = await asyncio.gather(*asking)
    assert sorted(map(said, answers)) == sorted(f"answer {n}" for n in range(1, 41))
    assert engine.most_at_work == 8
    asked = [str(sequence.messages[0].content) for sequence in session.recorder.sequences]
    assert sorted(asked) == sorted(f"{TORN} {n}" for n in range(40))


async def test_the_public_service_is_answered(log: Path, session: RecordedSession) -> None:
    with held_port() as port:
        await ask_the_public_service(log, session, port)


async def ask_the_public_service(log: Path, session: RecordedSession, port: int) -> None:
    program = str(Path(__file__).with_name("rock_service.py"))
    environment = {**os.environ, "ROCK_MODEL_SERVICE_DATA_DIR": str(log.parent)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        program,
        str(port),
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    public = Service(log)
    public.port = port
    try:
        async with asyncio.timeout(300), public.client() as client:
            while True:
                with suppress(httpx.TransportError):
                    if (await client.get("/health")).status_code == 200:
                        break
                assert process.returncode is None
                await asyncio.sleep(0.1)
        async with trainer(session, log) as told:
            answers = await asyncio.gather(*(public.ask(f"LLM_REQUEST_END{{}} {n}\n\u2028") for n in range(5)))
            assert sorted(map(said, answers)) == [f"answer {n}" for n in range(1, 6)]
            assert told == []
    finally:
        process.kill()
        await process.wait()


async def test_a_trainer_that_was_killed_answers_what_is_left_once_and_nothing_again(
    log: Path, session: RecordedSession, engine: Talker
) -> None:
    async with serving(log) as service:
        async with trainer(session, log):
            assert said(await service.ask("one")) == "answer 1"
        asking = asyncio.create_task(service.ask("two"))
        await requested(log, 2)
        engine.gate = asyncio.Event()
        async with trainer(session, log):
            await eventually(lambda: engine.at_work)
        assert engine.cancelled == 1
        torn = encode("response", completion("torn"), 2)[:50]
        with log.open("ab") as file:
            file.write(torn)  # it died as it wrote
        engine.gate = None
        async with trainer(session_of(engine), log) as told:
            assert said(await asking) == "answer 3"
            assert said(await service.ask("three")) == "answer 4"
    assert len(engine.requests) == 4, "of which one was cancelled"
    assert [r.number for r in of_kind(log, "response")] == [1, 2, 3]
    assert "no whole record" in told[0]


async def test_both_sides_may_be_killed_in_turn(log: Path, session: RecordedSession, engine: Talker) -> None:
    async with serving(log) as service:
        with suppress(httpx.HTTPError):
            async with asyncio.timeout(60):
                asking = asyncio.create_task(service.ask("x"))
                await requested(log, 1)
                await service.kill()
                await asking
        await service.start()
        async with trainer(session, log):
            assert said(await service.ask("x")) == "answer 1"
    assert len(engine.requests) == 1


async def test_errors_are_those_of_http(log: Path, engine: Talker) -> None:
    session = session_of(engine, max_calls=2)
    async with serving(log) as service, trainer(session, log):
        bad = await service.ask("x", n=0)
        assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_request")
        engine.error = EngineError("The engine is out of memory.")
        failed = await service.ask("y")
        assert (failed.status_code, failed.headers["retry-after"]) == (503, "1")
        assert "out of memory" in failed.json()["error"]["message"]
        engine.error = None
        assert said(await service.ask("z")) == "answer 2"
        spent = await service.ask("w", stream=True)
        assert (spent.status_code, spent.json()["error"]["code"]) == (400, "episode_ended")


async def test_a_fault_in_an_engine_is_an_error_of_one_call(
    log: Path, session: RecordedSession, engine: Talker
) -> None:
    async with serving(log) as service, trainer(session, log):
        engine.error = RuntimeError("a fault in a plugin")
        assert (await service.ask("x")).status_code == 503
        engine.error = None
        assert said(await service.ask("y")) == "answer 2"


async def test_the_end_of_the_session_ends_the_trainer_and_what_it_generates(
    log: Path, session: RecordedSession, engine: Talker
) -> None:
    engine.gate = asyncio.Event()
    append(str(log), encode("request", body_of("x"), 1))
    task = asyncio.create_task(answer_log(session, FolderLink(log)))
    await eventually(lambda: engine.at_work)
    append(str(log), SESSION_END + b"\n" + encode("request", body_of("too late"), 2))
    await asyncio.wait_for(task, 60)
    assert (engine.cancelled, len(engine.requests)) == (1, 1)
    assert not session.recorder.chunks
    await asyncio.wait_for(answer_log(session, FolderLink(log)), 10)
    assert len(engine.requests) == 1, "a log that has ended asks for nothing"


@pytest.mark.parametrize("how", ["renamed", "truncated"])
async def test_a_log_may_be_rotated_while_a_call_is_made(
    log: Path, session: RecordedSession, engine: Talker, how: str
) -> None:
    async with serving(log) as service, trainer(session, log) as told:
        assert said(await service.ask("before")) == "answer 1"
        engine.gate = asyncio.Event()
        asking = asyncio.create_task(service.ask("meanwhile"))
        await eventually(lambda: engine.at_work)
        os.rename(log, f"{log}.1") if how == "renamed" else os.truncate(log, 0)
        engine.gate.set()
        assert said(await asking) == "answer 2"
        assert said(await service.ask("after")) == "answer 3"
        assert of_kind(log, "request")[-1].number == 3
    assert [note for note in told if "truncated" not in note] == []


async def test_what_is_no_record_is_told_of_and_the_rest_is_answered(log: Path, session: RecordedSession) -> None:
    append(str(log), b"noise\nLLM_REQUEST_START{LLM_REQUEST_END{}\n\xff\0\n" + encode("request", "no object", 1))
    respond(log, 9, "never asked")
    async with serving(log) as service, trainer(session, log) as told:
        assert said(await service.ask("x")) == "answer 1"
    assert len([note for note in told if "no whole record" in note]) == 3
    assert "An answer to request 9, which was not asked, is ignored." in told
    refused = next(r for r in of_kind(log, "response") if r.number == 1)
    assert refused.meta["status"] == 400


async def test_a_service_that_counts_from_one_again_asks_something_new(
    log: Path, session: RecordedSession, engine: Talker
) -> None:
    async with trainer(session, log):
        for n in (1, 2):
            if n == 2:
                os.unlink(log)
            append(str(log), encode("request", body_of("the same"), 1, n))
            await eventually(lambda: of_kind(log, "response"))
    assert len(engine.requests) == 2


async def test_a_request_that_is_written_again_is_answered_again_but_sampled_once(
    log: Path, session: RecordedSession, engine: Talker
) -> None:
    line = encode("request", body_of("x"), 1)
    async with trainer(session, log):
        append(str(log), line)
        await eventually(lambda: len(of_kind(log, "response")) == 1)
        append(str(log), line)
        await eventually(lambda: len(of_kind(log, "response")) == 2)
    assert len(engine.requests) == 1


async def test_a_log_that_became_a_link_out_of_its_folder_ends_it(log: Path, session: RecordedSession) -> None:
    secret = log.with_name("secret")
    secret.write_bytes(encode("request", body_of("x"), 1))
    os.symlink(secret, log)
    with pytest.raises(OSError):
        await asyncio.wait_for(answer_log(session, FolderLink(log)), 10)
    assert secret.read_bytes().count(b"\n") == 1
