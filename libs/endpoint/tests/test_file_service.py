"""The file protocol's service in the sandbox: as its agent sees it, and as the public client of the protocol drives
it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from file_protocol_client import Service, body_of, completion, eventually, of_kind, records, requested, respond, serving
from rock.sdk.model.client import ModelClient

from ale_endpoint.relays import script
from ale_endpoint.relays.request_log import SESSION_END, append, encode

NASTY = "LLM_REQUEST_END LLM_RESPONSE_START SESSION_END\n\u2028\x85\x0b\0 LLM_RESPONSE_END{}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "LLMService.log"


@pytest.fixture
async def service(log: Path) -> AsyncIterator[Service]:
    async with serving(log) as started:
        yield started


def said(answer: httpx.Response) -> Any:
    """What the model says in an answer."""
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


async def test_the_public_client_drives_an_episode(log: Path, service: Service) -> None:
    model = ModelClient(str(log))

    async def agent() -> list[str]:
        heard = [said(await service.ask(f"{NASTY} {n}")) for n in range(1, 4)]
        watched = await asyncio.create_subprocess_exec("sleep", "0.1")
        async with service.client() as client:
            watching = await client.post("/v1/agent/watch", json={"pid": watched.pid})
        assert watching.json() == {"status": "watching", "pid": watched.pid}
        return heard

    acting = asyncio.create_task(agent())
    async with asyncio.timeout(60):
        request = await model.anti_call_llm(0)
        for n in range(1, 4):
            assert json.loads(request)["messages"][0]["content"] == f"{NASTY} {n}"
            request = await model.anti_call_llm(n, json.dumps(completion(f"answer {n}")))
        assert request == "SESSION_END"
    assert await acting == ["answer 1", "answer 2", "answer 3"]
    kinds = ["request", "response"] * 3
    assert [(r.kind, r.number) for r in records(log)] == [*zip(kinds, [1, 1, 2, 2, 3, 3], strict=True), ("end", 0)]


async def test_requests_at_once_in_turn_are_what_the_public_client_can_answer(log: Path) -> None:
    model = ModelClient(str(log))
    async with serving(log, "--in-turn") as service, asyncio.timeout(60):
        asking = [asyncio.create_task(service.ask(f"q{n}")) for n in range(3)]
        request = await model.anti_call_llm(0)
        for n in range(1, 4):
            text = json.loads(request)["messages"][0]["content"]
            await model.push_response(n, json.dumps(completion(f"to {text}")))
            if n < 3:
                request = await model.pop_request(n + 1)
        assert [said(await task) for task in asking] == ["to q0", "to q1", "to q2"]


async def test_requests_at_once_get_each_its_own_answer_in_any_order(log: Path, service: Service) -> None:
    asking = [asyncio.create_task(service.ask(f"q{n}")) for n in range(50)]
    found = await requested(log, 50)
    assert sorted(record.number for record in found) == list(range(1, 51))
    for record in reversed(found):
        respond(log, record.number, f"to {record.body['messages'][0]['content']}")
    assert [said(await task) for task in asking] == [f"to q{n}" for n in range(50)]


async def test_two_services_of_one_log_give_no_index_twice(log: Path, service: Service) -> None:
    async with serving(log) as other:
        asking = [asyncio.create_task((service, other)[n % 2].ask(f"q{n}")) for n in range(20)]
        found = await requested(log, 20)
        assert sorted(record.number for record in found) == list(range(1, 21))
        for record in found:
            respond(log, record.number, f"to {record.body['messages'][0]['content']}")
        assert [said(await task) for task in asking] == [f"to q{n}" for n in range(20)]


async def test_a_stream_carries_what_the_whole_answer_says(log: Path, service: Service) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": '{"command": "ls"}'}}
    answer = completion("a long text " * 30)
    answer["choices"][0]["message"]["tool_calls"] = [call]
    answer["choices"][0]["finish_reason"] = "tool_calls"

    async def agent() -> Any:
        async with service.openai() as client:
            messages: Any = body_of("x")["messages"]
            stream: Any = client.chat.completions.stream(
                model="m", messages=messages, stream_options={"include_usage": True}
            )
            async with stream as events:
                count = len([event async for event in events if event.type == "content.delta"])
                return count, await events.get_final_completion()

    acting = asyncio.create_task(agent())
    (record,) = await requested(log, 1)
    assert record.body["stream"] is True
    append(str(log), encode("response", answer, 1))
    count, final = await asyncio.wait_for(acting, 60)
    message = final.choices[0].message
    assert count > 2
    assert (message.content, final.choices[0].finish_reason) == ("a long text " * 30, "tool_calls")
    assert (message.tool_calls[0].id, message.tool_calls[0].function.arguments) == ("c1", '{"command": "ls"}')
    assert final.usage.total_tokens == 2


async def test_a_trainer_that_is_gone_is_a_503_in_time_and_its_late_answer_is_for_who_asks_again(log: Path) -> None:
    async with serving(log, "--timeout", "0.5") as service:
        late = await service.ask("x")
        assert late.status_code == 503
        assert "No answer came within 0.5 s" in late.json()["error"]["message"]
        respond(log, 1, "late")
        assert said(await service.ask("x")) == "late"
        assert [r.number for r in of_kind(log, "request")] == [1]


async def test_an_error_keeps_its_status(log: Path, service: Service) -> None:
    asking = asyncio.create_task(service.ask("x"))
    await requested(log, 1)
    append(str(log), encode("response", {"error": {"message": "no room"}}, 1, status=400))
    answer = await asking
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": "no room"}})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("answer", ["text", [], {}, {"choices": [{"message": 3}]}, {"choices": 3}])
async def test_an_answer_that_is_none_is_a_502(log: Path, service: Service, answer: Any, stream: bool) -> None:
    asking = asyncio.create_task(service.ask("x", stream=stream))
    await requested(log, 1)
    append(str(log), encode("response", answer, 1))
    got = await asking
    # What an answer's choices hold is looked into only where it must be: to make a stream of it.
    assert got.status_code == (502 if stream or "choices" not in answer else 200)


async def test_an_answer_to_what_was_never_asked_is_ignored_and_told(log: Path, service: Service) -> None:
    respond(log, 2, "forged beforehand")
    asking = [asyncio.create_task(service.ask(text)) for text in ("a", "b")]
    for record in await requested(log, 2):
        respond(log, record.number, f"to {record.number}")
    assert {said(await task) for task in asking} == {"to 1", "to 2"}
    assert "An answer to request 2, which was not asked, is ignored." in await service.complaints()


async def test_half_an_answer_is_waited_for_and_one_of_a_dead_writer_is_skipped(log: Path, service: Service) -> None:
    asking = asyncio.create_task(service.ask("x"))
    await requested(log, 1)
    torn, whole = encode("response", completion("torn"), 1), encode("response", completion("whole"), 1)
    with log.open("ab", buffering=0) as file:
        file.write(torn[:-20])
        await asyncio.sleep(0.2)
        assert not asking.done()
    append(str(log), whole)
    assert said(await asking) == "whole"
    assert "no whole record" in await service.complaints()


@pytest.mark.parametrize("how", ["renamed", "removed", "truncated"])
async def test_a_rotated_log_is_gone_on_with_and_indices_stay_unique(log: Path, service: Service, how: str) -> None:
    asking = asyncio.create_task(service.ask("x"))
    await requested(log, 1)
    {"renamed": lambda: log.rename(f"{log}.1"), "removed": log.unlink, "truncated": lambda: os.truncate(log, 0)}[how]()
    await eventually(log.exists)
    respond(log, 1, "after all")
    assert said(await asking) == "after all"
    await service.kill()
    os.unlink(log)
    await service.start()
    asking = asyncio.create_task(service.ask("y"))
    (record,) = await requested(log, 1)
    assert record.number == 2
    respond(log, 2, "fine")
    assert said(await asking) == "fine"


async def test_a_killed_service_goes_on_where_the_log_stands(log: Path, service: Service) -> None:
    asking = [asyncio.create_task(service.ask(text)) for text in ("answered", "left")]
    for record in await requested(log, 2):
        if record.body["messages"][0]["content"] == "answered":
            answered = record.number
            respond(log, answered, "first")
        else:
            left = record.number
    assert said(await asking[0]) == "first"
    await service.kill()
    with pytest.raises(httpx.HTTPError):
        await asking[1]
    await service.start()
    again = [asyncio.create_task(service.ask(text)) for text in ("left", "answered")]
    await requested(log, 4)
    numbers = {r.body["messages"][0]["content"]: r.number for r in of_kind(log, "request")}
    assert numbers == {"left": left, "answered": 3}, "what has no answer keeps its index; what had one is a new call"
    for number in (left, 3):
        respond(log, number, f"to {number}")
    assert [said(await task) for task in again] == [f"to {left}", "to 3"]
    assert len({r.meta["timestamp"] for r in of_kind(log, "request") if r.number == left}) == 1


@pytest.mark.parametrize("noticed", [True, False])
async def test_who_hangs_up_and_asks_again_gets_the_one_answer(log: Path, service: Service, noticed: bool) -> None:
    """Whether the answer comes after the service has noticed it, or before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    body = json.dumps(body_of("x")).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await requested(log, 1)
    writer.write_eof()
    if not noticed:
        respond(log, 1, "kept")
    assert await reader.read() == b"", "the service has hung up too"
    writer.close()
    if noticed:
        respond(log, 1, "kept")
    assert said(await service.ask("x")) == "kept"
    assert len(of_kind(log, "request")) == 1


async def test_the_session_ends_with_the_watched_agent_also_for_a_service_that_was_killed(
    log: Path, service: Service
) -> None:
    agent = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
    assert agent.stdin is not None
    async with service.client() as client:
        await client.post("/v1/agent/watch", json={"pid": agent.pid})
    await service.kill()
    await service.start()
    asking = asyncio.create_task(service.ask("x"))
    await requested(log, 1)
    assert "end" not in [r.kind for r in records(log)]
    agent.stdin.close()
    assert (await asking).status_code == 410
    assert (await service.ask("y")).status_code == 410
    assert [r.kind for r in records(log)] == ["request", "end"]
    await agent.wait()
    await service.kill()
    with pytest.raises(AssertionError, match="has ended; name another log"):
        await service.start()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", b"[]", 400),
        ("/v1/agent/watch", b'{"pid": "x"}', 400),
        ("/v1/agent/watch", b"{}", 400),
        ("/v1/else", b"{}", 404),
        ("/v1/chat/completions", b"[" * 100_000, 400),
        ("/v1/chat/completions", b"x" * ((16 << 20) + 1), 413),
    ],
)
async def test_bad_requests_are_refused_and_leave_no_record(
    log: Path, service: Service, path: str, body: bytes, status: int
) -> None:
    async with service.client() as client:
        try:
            assert (await client.post(path, content=body)).status_code == status
        except (httpx.WriteError, httpx.ReadError):
            assert status == 413, "only who sends too much may be hung up on while it sends"
        assert (await client.get("/health")).json() == {"status": "healthy"}
    assert records(log) == []


async def test_a_body_in_pieces_is_read(log: Path, service: Service) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b'{"messages": [{"role": "user",', b' "content": "in pieces"}]}'):
            yield piece

    async with service.client() as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", content=pieces()))
        (record,) = await requested(log, 1)
        assert record.body["messages"][0]["content"] == "in pieces"
        respond(log, 1, "heard")
        assert said(await asking) == "heard"


def test_a_service_that_cannot_start_says_why(log: Path) -> None:
    service = Service(log)
    program = log.with_name("files.py")
    program.write_text(script("files"))

    def complaint(path: Path, port: int) -> str:
        command = [sys.executable, str(program), str(path), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        return done.stderr

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "name another one" in complaint(log, taken.getsockname()[1])
    assert "cannot be had" in complaint(log.parent / "none" / "log", service.port)
    append(str(log), SESSION_END + b"\n")
    assert "name another log" in complaint(log, 0)
