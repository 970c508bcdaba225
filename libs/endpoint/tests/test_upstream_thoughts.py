"""The thoughts in another server's replies reach the agent in the form of its API, and go back when it sends them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from served_upstream import served
from upstreams import Faulty, sends

from ale_endpoint.forwarding import Forwarding
from ale_endpoint.upstream import Route, Upstream

CALLS = [{"id": "c1", "type": "function", "function": {"name": "shell", "arguments": "{}"}}]
GO = [{"role": "user", "content": "go"}]
ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": GO},
    "/v1/responses": {"input": GO},
    "/v1/messages": {"messages": GO, "max_tokens": 99},
}
THOUGHTS: dict[str, dict[str, Any]] = {
    "DeepSeek, vLLM, SGLang": {"content": "hi", "reasoning_content": "hm"},
    "OpenRouter, Ollama": {"content": "hi", "reasoning": "hm"},
    "Mistral": {
        "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "hi"}]
    },
    "LiteLLM": {
        "content": "hi",
        "reasoning_content": "hm",
        "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}],
    },
}


def thoughts_in(path: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of an answer, from its thoughts on, as an agent sends them back."""
    if path == "/v1/chat/completions":
        message = answer["choices"][0]["message"]
        assert message["reasoning_content"] == "hm"
        return [message]
    if path == "/v1/responses":
        assert answer["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
        return list(answer["output"])
    assert (answer["content"][0]["type"], answer["content"][0]["thinking"]) == ("thinking", "hm")
    return [{"role": "assistant", "content": answer["content"]}]


@pytest.mark.parametrize("path", ASKS)
@pytest.mark.parametrize("form", THOUGHTS)
async def test_thoughts_are_carried_both_ways(path: str, form: str) -> None:
    reply = {"role": "assistant", **THOUGHTS[form], "tool_calls": CALLS}
    body = {"choices": [{"index": 0, "message": reply, "finish_reason": "tool_calls"}]}
    async with Faulty().up() as up, Upstream([Route(up.url)], attempts=1, first_wait_s=0.01) as upstream:
        up.script[:] = [sends(body)] * 3
        async with served(Forwarding(upstream)) as url, httpx.AsyncClient(trust_env=False, base_url=url) as http:
            asked = {"model": "m", **ASKS[path]}
            answer = (await http.post(path, json=asked)).raise_for_status().json()
            said = thoughts_in(path, answer)
            key = "input" if path == "/v1/responses" else "messages"
            results = {
                "/v1/chat/completions": {"role": "tool", "tool_call_id": "c1", "content": "out"},
                "/v1/responses": {"type": "function_call_output", "call_id": "c1", "output": "out"},
                "/v1/messages": {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "out"}],
                },
            }
            await http.post(path, json={**asked, key: [*asked[key], *said, results[path]]})
            streamed = (await http.post(path, json={**asked, "stream": True})).text
        back = up.bodies[1]["messages"][1]
        assert (back["role"], back["content"], back["reasoning_content"]) == ("assistant", "hi", "hm")
        events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        assert "hm" in json.dumps(events)
        assert json.dumps(events).index('"hm"') < json.dumps(events).index('"hi"')
