"""Pictures in requests of each API: refused or left out by a run, passed on to an upstream."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from raw_requests import every_api, post, refused
from served_sessions import ServedSession, ServedSessions
from served_upstream import served
from upstreams import Faulty, says

from ale.errors import RequestRefused
from ale_endpoint.dialects.pictures import LEFT_OUT
from ale_endpoint.forwarding import Forwarding
from ale_endpoint.recorded_demonstrations import read_trajectories
from ale_endpoint.recording import Recording, read_recording
from ale_endpoint.replay import Replay
from ale_endpoint.upstream import Route, Upstream
from ale_testing.fake_engines import TOKENIZER, ScriptedEngine

URL = "data:image/png;base64,AAAA"
PARTS: dict[str, Any] = {
    "chat/completions": {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
    "responses": {"type": "input_image", "image_url": URL, "detail": "low"},
    "messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
}
OPENAI = {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}


@pytest.fixture(autouse=True)
def answers(engine: ScriptedEngine) -> None:
    engine.texts = ["plum", "pear"]


def asked(path: str) -> dict[str, Any]:
    """A request with a text and a picture."""
    text = {"type": "input_text" if path == "responses" else "text", "text": "Look: "}
    return {"input" if path == "responses" else "messages": [{"role": "user", "content": [text, PARTS[path]]}]}


def as_body(path: str) -> bytes:
    return httpx.Request("POST", "http://x", json=asked(path)).read()


@every_api
async def test_a_run_refuses_them_and_the_episode_is_not_judged_by_that(session: ServedSession, path: str) -> None:
    refused(await post(session, path, as_body(path)), 400, path, "only text is supported")
    assert isinstance(session.fault, RequestRefused)
    assert not session.recorder.chunks
    assert (await post(session, path)).status_code == 200
    assert session.fault is None, "the agent went on without it"


@every_api
async def test_a_run_leaves_them_out_where_its_settings_say_so(
    endpoint: ServedSessions, session: ServedSession, path: str
) -> None:
    endpoint.server.pictures = "leave_out"
    assert (await post(session, path, as_body(path))).status_code == 200
    assert session.recorder.sequences[0].messages[0].content == f"Look: {LEFT_OUT}"


async def test_pictures_that_tools_answer_with_are_pictures_too(
    endpoint: ServedSessions, session: ServedSession
) -> None:
    endpoint.server.pictures = "leave_out"
    result = {"type": "tool_result", "tool_use_id": "c", "content": [PARTS["messages"]]}
    output = {"type": "function_call_output", "call_id": "c", "output": [PARTS["responses"]]}
    for path, sent in (("messages", {"role": "user", "content": [result]}), ("responses", output)):
        body = {"input" if path == "responses" else "messages": [sent]}
        content = httpx.Request("POST", "http://x", json=body).read()
        assert (await post(session, path, content)).status_code == 200
    told = [sequence.messages[0] for sequence in session.recorder.sequences]
    assert [(message.role, message.content) for message in told] == [("tool", LEFT_OUT)] * 2


@every_api
@pytest.mark.parametrize("passed_on", [True, False])
async def test_an_upstream_gets_them_unless_they_are_left_out(path: str, passed_on: bool, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        faulty = await stack.enter_async_context(Faulty().up())
        faulty.script = [says("A plum.")]
        upstream = await stack.enter_async_context(Upstream([Route(faulty.url)]))
        recording = stack.enter_context(Recording(tmp_path / "calls.jsonl"))
        pictures: Any = "pass_on" if passed_on else "leave_out"
        forwarding = Forwarding(upstream, recording=recording, pictures=pictures)
        origin = await stack.enter_async_context(served(forwarding))
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        answer = await client.post(f"{origin}/v1/{path}", json=asked(path))
        assert answer.status_code == 200
        assert "A plum." in answer.text
    content = faulty.bodies[0]["messages"][0]["content"]
    picture = {**OPENAI, "image_url": {"url": URL}} if path == "messages" else OPENAI
    assert content == ([{"type": "text", "text": "Look: "}, picture] if passed_on else f"Look: {LEFT_OUT}")
    (call,) = read_recording(tmp_path / "calls.jsonl")
    replayed = Replay([call]).answer(call.request)
    assert replayed is not None
    assert replayed.replies[0].message.content == "A plum.", "found by its pictures again"
    (trained,) = read_trajectories(tmp_path / "calls.jsonl", TOKENIZER, None)
    assert trained.sequences[0].messages[0].content == f"Look: {LEFT_OUT}"


async def test_a_request_that_cannot_be_read_is_in_the_recording_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        faulty = await stack.enter_async_context(Faulty().up())
        faulty.script = [says()]
        upstream = await stack.enter_async_context(Upstream([Route(faulty.url)]))
        recording = stack.enter_context(Recording(tmp_path / "calls.jsonl"))
        forwarding = Forwarding(upstream, recording=recording)
        origin = await stack.enter_async_context(served(forwarding))
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        url = f"{origin}/v1/chat/completions"
        assert (await client.post(url, json={"messages": "hi"})).status_code == 400
        assert (await client.post(url, content=b"{\xff")).status_code == 400
        assert (await client.post(url, json={"messages": [{"role": "user", "content": "hi"}]})).status_code == 200
    first, second, third = read_recording(tmp_path / "calls.jsonl")
    assert first.error == "'messages' must be a list, not a text."
    assert first.request.ignored == {"sent": '{"messages":"hi"}'}
    assert second.error is not None
    assert "not valid JSON" in second.error
    assert [first.number, second.number, third.number] == [0, 1, 2]
    assert third.answer is not None
    assert forwarding.counts == {"refused": 2, "answered": 1}
    assert "'messages' must be a list, not a text." in caplog.text
