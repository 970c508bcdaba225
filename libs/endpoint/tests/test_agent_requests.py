"""The requests of real agents, in shape: each is read, and the second one goes on from the very tokens of the first."""

from __future__ import annotations

import json

import pytest
from agent_requests import AGENTS, COMMAND, TASK

from ale_endpoint.dialects import ChatCompletions
from ale_testing.fake_engines import session


@pytest.mark.parametrize("agent", AGENTS)
def test_a_real_agents_request_is_read(agent: str) -> None:
    call = ChatCompletions().read(AGENTS[agent](2))
    assert [m.role for m in call.messages] == ["system", "user", *["assistant", "tool"] * 2]
    assert TASK in call.messages[1].content
    for said, answered in (call.messages[2:4], call.messages[4:6]):
        assert said.content == ""
        assert json.loads(said.tool_calls[0].arguments)["command"] == COMMAND
        assert answered.tool_call_id == said.tool_calls[0].id
    assert said.tool_calls[0].name in {tool.name for tool in call.tools}
    assert len(call.tools) == {"mini": 1, "openhands": 4, "qwen-code": 14}[agent]
    assert call.stream == (agent == "qwen-code")


@pytest.mark.parametrize("agent", AGENTS)
async def test_what_a_real_agent_sends_back_extends_what_was_sampled(agent: str) -> None:
    dialect, sent = ChatCompletions(), AGENTS[agent](2)["messages"]
    calls = [message["tool_calls"][0]["function"] for message in sent if message["role"] == "assistant"]
    said = [
        f"<tool_call>\n{json.dumps({'name': c['name'], 'arguments': json.loads(c['arguments'])})}\n</tool_call>"
        for c in calls
    ]
    async with session([*said, "I am done."], max_context=1 << 20) as line:
        for steps in range(3):
            await line.answer(dialect.read(AGENTS[agent](steps)))
        assert len(line.recorder.sequences) == 1
        assert [chunk.error for chunk in line.recorder.chunks] == [None] * 3
