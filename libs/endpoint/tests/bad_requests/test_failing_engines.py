"""An engine that fails, stalls or answers with nonsense is told of as an error, and nothing of it is recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from raw_requests import ASKED, every_api, post, refused
from served_sessions import ServedSession, ServedSessions

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest
from ale_testing.fake_engines import ProgrammableEngine, whole_answer


async def breaks(request: GenerateRequest) -> Any:
    raise ZeroDivisionError("division by zero")


async def fails(request: GenerateRequest) -> Any:
    raise EngineError("The engine is out of memory.")


async def fails_for_good(request: GenerateRequest) -> Any:
    raise BadWeights("The weights are broken.")


async def says_nonsense(request: GenerateRequest) -> Any:
    return {"text": "Yes"}


async def says_nothing(request: GenerateRequest) -> Any:
    return None


def says(**garbage: Any) -> Callable[[GenerateRequest], Awaitable[Any]]:
    """An engine whose answer is wrong in this."""

    async def say(request: GenerateRequest) -> Any:
        return replace(whole_answer("Yes"), **garbage)

    return say


class BadWeights(EngineError):
    """Not worth a retry."""

    retryable = False


@every_api
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("does", "status", "sentence"),
    [
        (breaks, 503, "ZeroDivisionError: division by zero"),
        (fails, 503, "out of memory"),
        (fails_for_good, 500, "weights are broken"),
        (says_nonsense, 503, "answered with dict, not with a Generation"),
        (says_nothing, 503, "answered with NoneType"),
        (says(token_ids=(1 << 20,) * 4), 503, "it has the token 1048576"),
        (says(logprobs=(float("nan"),) * 4), 503, "must be finite"),
        (says(versions=()), 503, "and 0 versions"),
        (says(token_ids=(65,) * 9999, logprobs=(-1.0,) * 9999, versions=(1,) * 9999), 503, "tokens, where"),
    ],
)
async def test_an_engine_that_fails_is_told_in_the_apis_own_shape(
    session: ServedSession,
    engine: ProgrammableEngine,
    path: str,
    stream: bool,
    does: Callable[[GenerateRequest], Awaitable[Any]],
    status: int,
    sentence: str,
) -> None:
    engine.does = does
    answer = await post(session, path, json.dumps({**ASKED[path], "stream": stream}).encode())
    refused(answer, status, path, sentence)
    assert len(session.recorder.chunks) == 1


async def test_of_several_answers_that_fail_the_first_fault_is_told(
    session: ServedSession, engine: ProgrammableEngine
) -> None:
    engine.does = fails
    body = json.dumps({**ASKED["chat/completions"], "n": 3}).encode()
    refused(await post(session, "chat/completions", body), 503, "chat/completions", "out of memory")


@every_api
async def test_an_error_in_a_stream_that_has_begun_is_an_event_of_it(
    session: ServedSession, engine: ProgrammableEngine, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("ale_endpoint.http_app.PATIENCE_S", 0.05)

    async def late(request: GenerateRequest) -> Any:
        await asyncio.sleep(0.3)
        raise ZeroDivisionError("division by zero")

    engine.does = late
    answer = await post(session, path, json.dumps({**ASKED[path], "stream": True}).encode())
    assert answer.status_code == 200
    assert "division by zero" in answer.text
    assert ("event: error" in answer.text) == (path != "chat/completions")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_stalls_is_ended_with_the_session(
    served: tuple[ServedSessions, ProgrammableEngine],
    session: ServedSession,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
) -> None:
    monkeypatch.setattr("ale_endpoint.http_app.PATIENCE_S", 0.2)
    endpoint, engine = served
    began, ended = asyncio.Event(), asyncio.Event()

    async def stall(request: GenerateRequest) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    engine.does = stall
    async with httpx.AsyncClient(trust_env=False, timeout=60, headers={"x-api-key": session.api_key}) as client:
        body = {**ASKED["chat/completions"], "stream": stream}
        request = client.build_request("POST", f"{session.base_url}/chat/completions", json=body)
        asking = asyncio.create_task(client.send(request, stream=True))
        async with asyncio.timeout(30):
            await (asking if stream else began.wait())  # a stream's answer begins once the patience is at its end
            endpoint.close(session)
            answer = await asking
            text = (await answer.aread()).decode()
            await ended.wait()
    assert "The episode has ended" in text
    assert answer.status_code == (200 if stream else 400)
