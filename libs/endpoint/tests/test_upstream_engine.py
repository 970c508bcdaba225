"""Another server's model as the engine of a session: its answers are recorded, and calls beyond the limit refused."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import httpx
import openai
import pytest
from official_clients import CHAT_TOOL
from served_sessions import ServedSessions
from served_upstream import GO
from upstreams import Faulty, fails, says

from ale.registry.hooks import Hooks
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import Sampling
from ale_endpoint.upstream_engine import UpstreamEngine


async def test_a_teacher_in_a_run_is_recorded_as_given_and_asked_only_what_the_run_allows() -> None:
    async with Faulty().up() as faulty:
        call = {"id": "c1", "function": {"name": "shell", "arguments": '{"command": "ls"}'}}
        unreadable = {"id": "c2", "function": {"name": "shell", "arguments": "ls"}}
        faulty.script = [
            says("I look.", tool_calls=[call]),
            says("one"),
            says("two"),
            says(None, tool_calls=[unreadable]),
        ]
        config = UpstreamEngine.Config(url=faulty.url, model="m", parameters={"temperature": 0.3})
        engine = UpstreamEngine(config, DriverContext())
        messages: Any = [*GO]
        tools: Any = [CHAT_TOOL]
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(engine)
            endpoint = await stack.enter_async_context(ServedSessions(byte_tokenizer(), engine, Hooks()))
            session = endpoint.open("e", Sampling(), max_calls=4, max_context=10)
            chat = await stack.enter_async_context(
                openai.AsyncOpenAI(
                    base_url=session.base_url,
                    api_key=session.api_key,
                    max_retries=0,
                    http_client=httpx.AsyncClient(trust_env=False),
                )
            )
            made = await chat.chat.completions.create(
                model="m", messages=messages, tools=tools, temperature=2, max_tokens=7
            )
            messages += [made.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": "c1", "content": "out"}]
            both = await chat.chat.completions.create(model="m", messages=messages, tools=tools, n=2)
            assert {choice.message.content for choice in both.choices} == {"one", "two"}
            text = (
                (await chat.chat.completions.create(model="m", messages=messages, tools=tools))
                .choices[0]
                .message.content
            )
            assert text is not None
            assert "<tool_call>" in text
            faulty.script = [fails(404, "no such model"), fails(404, "no such model")]
            session.calls = 2
            with pytest.raises(openai.NotFoundError, match="no such model"):
                await chat.chat.completions.create(model="m", messages=messages, tools=tools, n=2)
            del faulty.bodies[4:]
            with pytest.raises(openai.BadRequestError, match="used its 4 model calls"):
                await chat.chat.completions.create(model="m", messages=messages, tools=tools)
        assert [(body["temperature"], body.get("max_tokens"), body.get("n")) for body in faulty.bodies] == [
            (0.3, 7, None),
            (0.3, None, None),
            (0.3, None, None),
            (0.3, None, None),
        ]
        assert [(c.sampled, c.error and c.error.kind) for c in session.recorder.chunks] == [
            (False, None),
            (False, None),
            (False, None),
            (False, "illegal_call"),
        ]
        line = session.recorder.sequences[0]
        assert byte_tokenizer().decode(line.token_ids).count("I look.") == 1
