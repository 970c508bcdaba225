"""The messages API of the endpoint, as the official client of Anthropic sees it."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest
from official_clients import ANTHROPIC_TOOL, LONG, TWO, exact
from served_sessions import ServedSession

from ale_testing.fake_engines import ScriptedEngine


async def test_messages_with_tools_is_one_line_of_tokens(
    claude: anthropic.AsyncAnthropic, session: ServedSession, engine: ScriptedEngine
) -> None:
    engine.texts = [TWO, "done"]
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]}
    ]
    tools = [ANTHROPIC_TOOL, {"type": "web_search_20250305", "name": "web_search"}]
    first = await claude.messages.create(model="m", max_tokens=999, system=system, messages=messages, tools=tools)
    assert (first.stop_reason, [block.type for block in first.content]) == (
        "tool_use",
        ["text", "tool_use", "tool_use"],
    )
    messages.append({"role": "assistant", "content": [block.model_dump() for block in first.content]})
    results = [
        {
            "type": "tool_result",
            "tool_use_id": block.id,
            "content": [{"type": "text", "text": "out"}],
            "is_error": False,
        }
        for block in first.content
        if block.type == "tool_use"
    ]
    messages.append({"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]})
    messages.append({"role": "system", "content": "Mind the time."})
    second = await claude.messages.create(model="m", max_tokens=999, system=system, messages=messages, tools=tools)
    assert (second.stop_reason, second.content[0].text) == ("end_turn", "done")  # type: ignore[union-attr]
    exact(session, engine)


@pytest.mark.parametrize("text", [LONG, TWO, ""])
async def test_a_stream_of_messages_says_what_the_whole_says(
    claude: anthropic.AsyncAnthropic, engine: ScriptedEngine, text: str
) -> None:
    engine.texts = [text, text]
    ask: dict[str, Any] = {
        "model": "m",
        "max_tokens": 4000,
        "messages": [{"role": "user", "content": "go"}],
        "tools": [ANTHROPIC_TOOL],
    }
    whole = await claude.messages.create(**ask)
    async with claude.messages.stream(**ask) as stream:
        final = await stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    contents = [
        [block.model_dump(exclude={"id"}, exclude_none=True) for block in made.content] for made in (final, whole)
    ]
    for content in contents:
        for block in content:
            block.pop("parsed_output", None)
    assert contents[0] == contents[1]


async def test_stop_sequences_and_counts(
    claude: anthropic.AsyncAnthropic, session: ServedSession, engine: ScriptedEngine
) -> None:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    counted = await claude.messages.count_tokens(model="m", messages=messages)
    assert session.recorder.chunks == ()
    engine.texts = ["ab END cd"]
    made = await claude.messages.create(model="m", max_tokens=99, messages=messages, stop_sequences=["END"])
    assert (made.stop_reason, made.stop_sequence, made.content[0].text) == ("stop_sequence", "END", "ab ")  # type: ignore[union-attr]
    assert made.usage.input_tokens == counted.input_tokens
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.head(session.base_url.removesuffix("/v1") + "/")).status_code == 200
