"""How calls become sessions: exact tokens over turns, clients apart, sampling as a call asks, bounded memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ale.errors import EngineError, RequestRefused
from ale.messages import Message, ModelCall
from ale.registry.hooks import Hooks
from ale.session.session import Sessions
from ale.specs.engine import Sampling
from ale_endpoint.serving.conversations import Conversations
from ale_endpoint.serving.served_policy import ServedClient, ServedPolicy
from ale_testing.fake_engines import TOKENIZER, ScriptedEngine

HELLO = Message("user", "hello")


def policy_of(engine: ScriptedEngine, key: str | None = None, most_tokens: int = 10_000) -> ServedPolicy:
    conversations = Conversations(Sessions(TOKENIZER, engine, Hooks()), engine.max_context, most_tokens)
    return ServedPolicy(conversations, Sampling(0.7, max_tokens=64), ["tiny"], key)


def client_of(policy: ServedPolicy, key: str = "") -> ServedClient:
    client = policy.by_key(key)
    assert client is not None
    return client


def call(*messages: Message, **more: Any) -> ModelCall:
    return ModelCall(messages, **more)


async def test_a_later_turn_reads_the_very_tokens_that_were_sampled() -> None:
    engine = ScriptedEngine(["<think>\nhm\n</think>\n\nfirst", "second"])
    policy = policy_of(engine)
    (first,) = await client_of(policy).answer(call(HELLO))
    assert (first.message.content, first.message.reasoning) == ("first", "hm")
    shown = Message("assistant", first.message.content)
    await client_of(policy).answer(call(HELLO, shown, Message("user", "and?")))
    before, after = engine.requests
    sampled = tuple(TOKENIZER.encode("<think>\nhm\n</think>\n\nfirst"))
    assert after.token_ids[: len(before.token_ids) + len(sampled)] == before.token_ids + sampled
    assert before.session == after.session, "the engine finds the prefix in its cache"


async def test_clients_and_openings_have_sessions_of_their_own() -> None:
    engine = ScriptedEngine(["x"] * 4)
    policy = policy_of(engine)
    for key, text in (("a", "hello"), ("b", "hello"), ("a", "bye"), ("a", "hello")):
        await client_of(policy, key).answer(call(Message("user", text)))
    first, other_client, other_opening, again = (request.session for request in engine.requests)
    assert len({first, other_client, other_opening}) == 3
    assert first == again


async def test_a_call_is_sampled_as_it_asks_and_else_by_default() -> None:
    engine = ScriptedEngine(["x"] * 3)
    client = client_of(policy_of(engine))
    await client.answer(call(HELLO))
    await client.answer(call(HELLO, ignored={"temperature": 0, "top_p": 0.9, "top_k": 3}))
    await client.answer(call(HELLO, ignored={"temperature": None}, max_tokens=5))
    plain, asked, short = (request.sampling for request in engine.requests)
    assert (plain.temperature, plain.top_p, plain.top_k, plain.max_tokens) == (0.7, 1.0, 0, 64)
    assert (asked.temperature, asked.top_p, asked.top_k) == (0, 0.9, 3)
    assert (short.temperature, short.max_tokens) == (0.7, 5)


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 3},
        {"temperature": "hot"},
        {"temperature": True},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_k": 1.5},
    ],
)
async def test_sampling_that_makes_no_sense_is_refused(asked: dict[str, Any]) -> None:
    engine = ScriptedEngine(["x"])
    policy = policy_of(engine)
    with pytest.raises(RequestRefused, match=next(iter(asked))):
        await client_of(policy).answer(call(HELLO, ignored=asked))
    assert not engine.requests
    assert policy.counts["refused"] == 1


async def test_conversations_used_longest_ago_are_forgotten_and_go_on_from_their_text() -> None:
    engine = ScriptedEngine(["a long answer " * 4] * 30)
    policy = policy_of(engine, most_tokens=400)
    client = client_of(policy)
    (first,) = await client.answer(call(HELLO))
    for number in range(20):
        await client.answer(call(Message("user", f"question {number}")))
        assert policy.conversations.tokens <= 400
    assert 0 < len(policy.conversations) < 20
    await client.answer(call(HELLO, first.message, Message("user", "and?")))
    assert engine.requests[-1].session != engine.requests[0].session


async def test_a_conversation_that_alone_is_too_large_is_forgotten_although_it_answers_other_calls() -> None:
    engine = ScriptedEngine(["x" * 50] * 9)
    policy = policy_of(engine, most_tokens=100)
    answers = await asyncio.gather(*(client_of(policy).answer(call(HELLO)) for _ in range(8)))
    assert [reply.message.content for (reply,) in answers] == ["x" * 50] * 8
    assert policy.conversations.tokens <= 100
    await client_of(policy).answer(call(HELLO))
    assert engine.requests[-1].session != engine.requests[0].session


async def test_a_call_that_is_given_up_frees_its_slot_and_counts_no_more() -> None:
    engine = ScriptedEngine(["x"])
    engine.wait = asyncio.Event()
    policy = policy_of(engine)
    task = asyncio.create_task(client_of(policy).answer(call(HELLO)))
    while not engine.requests:  # noqa: ASYNC110 - the engine gets it after a few steps of the loop
        await asyncio.sleep(0)
    assert policy.running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (policy.running, engine.cancelled, len(policy.conversations)) == (0, 1, 0)
    assert policy.counts["cancelled"] == 1


async def test_faults_of_the_engine_are_counted_apart() -> None:
    engine = ScriptedEngine(["x"])
    engine.error = EngineError("The engine is gone.")
    policy = policy_of(engine)
    with pytest.raises(EngineError):
        await client_of(policy).answer(call(HELLO))
    assert policy.counts == {"answered": 0, "failed": 1, "refused": 0, "cancelled": 0}


def test_a_required_key_lets_in_its_own_clients_and_nobody_else() -> None:
    policy = policy_of(ScriptedEngine(), key="secret")
    assert [policy.lets_in(key) for key in ("secret", "secret:a", "secret:")] == [True, True, True]
    assert not any(policy.lets_in(key) for key in ("", "secre", "secreta", "Secret", "a:secret", "\ud800"))
    assert client_of(policy, "secret:a").id != client_of(policy, "secret:b").id
    assert policy.by_key("wrong") is None


async def test_ids_of_answers_are_unique() -> None:
    engine = ScriptedEngine(["x"] * 3)
    client = client_of(policy_of(engine))
    replies = [*await client.answer(call(HELLO, n=2)), *await client.answer(call(HELLO))]
    assert [reply.chunk for reply in replies] == [0, 1, 2]
    assert client_of(policy_of(engine)).id != client.id, "another start of the server"
