"""Sessions: budgets, what an agent in a process of its own cannot raise, and calls that are under way at the end."""

from __future__ import annotations

import asyncio

import pytest

from ale.errors import BudgetExceeded, ContextExceeded, EngineError, RequestRefused
from ale.messages import Message, ModelCall, ToolSpec
from ale.registry.hooks import Hooks
from ale.rollout.side_calls import mark_side_calls
from ale.session.session import RecordedSession, Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.engine import Sampling
from ale_testing.fake_engines import CALL, ScriptedEngine

TOOLS = (ToolSpec("shell", "Run."),)
ASK = (Message("user", "go"),)


def opened(engine: ScriptedEngine, **budget: int) -> RecordedSession:
    endpoint = Sessions(byte_tokenizer(), engine, Hooks())
    return endpoint.open("s", Sampling(max_tokens=200), **{"max_calls": 9, "max_context": 999, **budget})  # type: ignore[arg-type]


async def test_a_refused_call_is_remembered_for_agents_that_cannot_raise_it() -> None:
    engine = ScriptedEngine()
    engine.texts = ["one"]
    session = opened(engine, max_calls=1)
    await session.chat(ASK)
    assert not session.spent
    with pytest.raises(BudgetExceeded):
        await session.chat(ASK)
    assert session.spent


async def test_a_full_context_is_forgotten_once_the_agent_has_shortened_its_conversation() -> None:
    engine = ScriptedEngine()
    engine.texts = ["one", "two"]
    session = opened(engine, max_calls=3)
    long = (Message("user", "x" * 2000),)
    with pytest.raises(ContextExceeded):
        await session.chat(long)
    assert session.spent, "an agent that ends here has ended for want of room"
    await session.chat(ASK)
    assert not session.spent
    await session.chat(ASK)
    with pytest.raises(BudgetExceeded, match="has used its 3 model calls"):
        await session.chat(ASK)
    assert session.spent


async def test_a_refused_request_is_a_fault_until_a_call_works_again() -> None:
    engine = ScriptedEngine()
    engine.texts = ["one"]
    session = opened(engine)
    engine.error = RequestRefused("The server of this model takes no pictures.")
    with pytest.raises(RequestRefused):
        await session.chat(ASK)
    assert session.fault is engine.error, "an agent that ends here has not failed its task"
    engine.error = None
    await session.chat(ASK)
    assert session.fault is None


async def test_titles_and_summaries_take_no_call_from_the_task() -> None:
    engine = ScriptedEngine()
    engine.texts = ["A title", CALL, "A summary", "done"]
    session = opened(engine, max_calls=2)
    for tools in ((), TOOLS, (), TOOLS):
        await session.chat(ASK, tools)
    for tools in ((), TOOLS):
        with pytest.raises(BudgetExceeded, match="has used its 2 model calls"):
            await session.chat(ASK, tools)
    assert session.calls == 4


async def test_a_title_is_a_side_call_also_if_it_is_the_only_answered_one() -> None:
    engine = ScriptedEngine()
    engine.texts = ["A title"]
    session = opened(engine)
    await session.chat(ASK)
    with pytest.raises(ContextExceeded):
        await session.chat((Message("user", "x" * 2000),), TOOLS)
    (chunk,) = mark_side_calls(session.recorder.sequences, session.recorder.chunks, session.offers_tools)
    assert chunk.side


async def test_a_fault_is_remembered_until_a_call_works_again() -> None:
    engine = ScriptedEngine()
    engine.texts = ["one"]
    session = opened(engine)
    engine.error = EngineError("The engine is lost.")
    with pytest.raises(EngineError):
        await session.chat(ASK)
    assert session.fault is engine.error
    engine.error = None
    await session.chat(ASK)
    assert session.fault is None


async def test_calls_under_way_end_with_the_session() -> None:
    engine = ScriptedEngine()
    engine.wait = asyncio.Event()
    session = opened(engine)
    asking = [asyncio.ensure_future(session.chat(ASK)) for _ in range(3)]
    while len(engine.requests) < 3:  # noqa: ASYNC110 - the engine gets them after a few steps of the loop
        await asyncio.sleep(0)
    session.close()
    for ask in asking:
        with pytest.raises(BudgetExceeded, match="has ended"):
            await ask
    assert engine.cancelled == 3
    with pytest.raises(BudgetExceeded, match="has ended"):
        await session.chat(ASK)
    assert session.recorder.chunks == ()


async def test_calls_side_by_side_keep_the_budget_of_tokens_together() -> None:
    engine = ScriptedEngine()
    engine.texts = ["abcdefgh"] * 3
    engine.wait = asyncio.Event()
    session = opened(engine, max_sampled_tokens=210)
    asking = [asyncio.ensure_future(session.chat(ASK)) for _ in range(3)]
    while len(engine.requests) < 2:  # noqa: ASYNC110 - the engine gets them after a few steps of the loop
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)  # a third one would come by now
    assert [request.sampling.max_tokens for request in engine.requests] == [200, 10]
    engine.wait.set()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert [isinstance(result, BudgetExceeded) for result in results] == [False, False, True]
    reply = (await session.chat(ASK)).message
    assert reply.content == "abcdefgh", "what was reserved and not sampled can be used again"


async def test_one_of_several_answers_that_fails_fails_the_call() -> None:
    engine = ScriptedEngine()
    engine.error = EngineError("The engine is lost.")
    session = opened(engine)
    with pytest.raises(EngineError, match="is lost"):
        await session.answer(ModelCall(ASK, n=3))


async def test_a_call_of_an_unknown_tool_is_illegal_and_still_given() -> None:
    engine = ScriptedEngine()
    engine.texts = [CALL.replace('"shell"', '"shel"'), CALL]
    session = opened(engine)
    reply = await session.chat(ASK, TOOLS)
    assert reply.message.tool_calls[0].name == "shel"
    await session.chat(ASK, TOOLS)
    first, second = session.recorder.chunks
    assert first.error is not None
    assert first.error.message == "There is no tool 'shel'; the tools are shell."
    assert second.error is None


async def test_calls_without_tools_of_an_agent_that_has_tools_are_side_calls() -> None:
    engine = ScriptedEngine()
    engine.texts = ["A title", CALL, "A summary", "done"]
    session = opened(engine)
    await session.chat((Message("user", "Make a title."),))
    made = (await session.chat(ASK, TOOLS)).message
    await session.chat((*ASK, made, Message("user", "Sum up.")))
    await session.chat((*ASK, made, Message("tool", "out", tool_call_id=made.tool_calls[0].id)), TOOLS)
    chunks = mark_side_calls(session.recorder.sequences, session.recorder.chunks)
    assert [chunk.side for chunk in chunks] == [True, False, True, False]
    assert [chunk.sequence for chunk in chunks] == [0, 1, 2, 1]


async def test_an_agent_without_tools_has_no_side_calls() -> None:
    engine = ScriptedEngine()
    engine.texts = ["one", "two"]
    session = opened(engine)
    await session.chat(ASK)
    await session.chat((Message("user", "else"),))
    chunks = mark_side_calls(session.recorder.sequences, session.recorder.chunks)
    assert [chunk.side for chunk in chunks] == [False, False]
