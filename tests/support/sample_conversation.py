"""This sample is a conversation of four chunks between an agent and a policy, with its trajectory (`EXPERT`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ale.messages import Message, ToolSpec
from ale.registry.hooks import Hooks
from ale.session.session import RecordedSession, Sessions
from ale.session.tokenizer import ChatTokenizer, byte_tokenizer, train_tokenizer
from ale.specs.engine import Sampling
from ale.specs.start import Responder
from ale.trajectory import Trajectory
from ale_testing.fake_engines import ScriptedEngine

TOOLS = (ToolSpec("shell", "Run."),)
TOKENIZERS = {
    "bytes": byte_tokenizer(),
    "bpe": train_tokenizer(
        ["shell ls cat a.txt word found in the file", "<|im_start|>user\nhello<|im_end|>\n"] * 20, 330
    ),
}
"""Tokenizers to try a conversation with: one of bytes, and a small one with merges."""
START = (Message("system", "You act."), Message("user", "do it"))
SAYS = [
    f'<tool_call>\n{{"name": "shell", "arguments": {{"command":  "step {i}"}}}}\n</tool_call>' for i in range(3)
] + ["done"]


def open_session(
    responder: Responder | None, texts: Sequence[str], tokenizer: ChatTokenizer | None = None
) -> tuple[RecordedSession, ScriptedEngine]:
    """A session whose policy gives these answers, and its engine."""
    engine = ScriptedEngine(texts)
    endpoint = Sessions(tokenizer or byte_tokenizer(), engine, Hooks())
    return endpoint.open("s", Sampling(max_tokens=200), max_calls=20, max_context=4000, responder=responder), engine


async def act(session: RecordedSession, results: list[str]) -> list[Message]:
    """The agent: it answers the tool calls with these results until a reply has none; the whole conversation."""
    history = list(START)
    answers = iter(results)
    while True:
        reply = (await session.chat(history, TOOLS)).message
        history.append(reply)
        if not reply.tool_calls:
            return history
        history += [Message("tool", next(answers), tool_call_id=call.id) for call in reply.tool_calls]


def _record() -> Trajectory:
    session, _ = open_session(None, SAYS)
    asyncio.run(act(session, ["out 0", "out 1", "out 2"]))
    return Trajectory("e", "t", "train", "rl", 0, "g", 0, 0, session.recorder.sequences, session.recorder.chunks)


EXPERT = _record()
