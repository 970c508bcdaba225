"""Why sampled tokens are kept: what tokenizing the text again would have made of them, over random conversations."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from support.sample_conversation import TOKENIZERS
from test_recorder import TOOLS, open_session

from ale.messages import Message

BPE = TOKENIZERS["bpe"]


async def talk(session, turns: int) -> list[Message]:
    history = [Message("system", "You act."), Message("user", "do it")]
    for _ in range(turns):
        reply = (await session.chat(history, TOOLS)).message
        history.append(reply)
        history += [Message("tool", "out", tool_call_id=c.id) for c in reply.tool_calls] or [Message("user", "go on")]
    return history


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_the_naive_way_drifts_and_this_one_does_not(seed: int, turns: int) -> None:
    engine, session = open_session(BPE, seed)
    asyncio.run(talk(session, turns))
    for chunk, (request, generation) in zip(session.recorder.chunks, engine.log, strict=True):
        line = session.recorder.sequences[chunk.sequence].token_ids
        assert line[: chunk.start] == request.token_ids
        assert line[chunk.start : chunk.end] == generation.token_ids


def test_of_random_conversations_most_would_have_been_trained_on_other_tokens() -> None:
    drifted = 0
    for seed in range(40):
        engine, session = open_session(BPE, seed)
        history = asyncio.run(talk(session, 4))
        last = engine.log[-1][0].token_ids
        naive = tuple(
            BPE.encode(BPE.render(history[: len(session.recorder.sequences[0].messages) - 1], TOOLS, prompt=True))
        )
        drifted += naive != last
    assert drifted > 20, "tokens that are sampled at random are seldom those that the tokenizer would have chosen"
