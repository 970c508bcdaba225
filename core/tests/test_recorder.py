"""Token recording: what is recorded is exactly what the engine saw and sampled."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sample_conversation import TOKENIZERS

from ale.errors import BudgetExceeded
from ale.messages import Message, ToolCall, ToolSpec
from ale.registry.hooks import Hooks
from ale.session.recorder import Recorder
from ale.session.session import Sessions
from ale.session.tokenizer import ChatTokenizer
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Sampling
from ale.specs.start import Reply

TOOLS = (ToolSpec("shell", "Run a command.", {"type": "object", "properties": {"command": {"type": "string"}}}),)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


class RandomEngine(Driver, InferenceEngine):
    """Samples random tokens and remembers every request: the other side of the ledger."""

    def __init__(self, tokenizer: ChatTokenizer, seed: int) -> None:
        super().__init__(PluginConfig(), DriverContext())
        self.rng = random.Random(seed)
        self.tokenizer = tokenizer
        self.log: list[tuple[GenerateRequest, Generation]] = []
        self._version = 0

    max_context = 4096

    @property
    def version(self) -> int:
        return self._version

    async def load_model(self, folder: object, tokenizer: object) -> None: ...

    async def load_weights(self, policy: PolicyVersion) -> None:
        self._version = policy.version

    async def generate(self, request: GenerateRequest) -> Generation:
        kind = self.rng.random()
        if kind < 0.5:
            text = '<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}\n</tool_call>'
            ids = self.tokenizer.encode(self.rng.choice(["", "so "]) + text)
        else:
            ids = [self.rng.randrange(self.tokenizer.vocab_size) for _ in range(self.rng.randrange(1, 9))]
        stop = self.tokenizer.stop_token_ids[0]
        ids = [t for t in ids if t != stop]
        finish = "length"
        if self.rng.random() < 0.8 or not ids:
            ids, finish = [*ids, stop], "stop"
        self._version += self.rng.randrange(2)
        generation = Generation(tuple(ids), tuple(-self.rng.random() for _ in ids), (self._version,) * len(ids), finish)
        self.log.append((request, generation))
        return generation


def open_session(tokenizer: ChatTokenizer, seed: int, **budget: int):
    engine = RandomEngine(tokenizer, seed)
    endpoint = Sessions(tokenizer, engine, Hooks())
    budget = {"max_calls": 100, "max_context": 4096} | budget
    return engine, endpoint.open("s", Sampling(max_tokens=200), **budget)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), answers=st.lists(TEXT, min_size=1, max_size=6), name=st.sampled_from(sorted(TOKENIZERS))
)
def test_a_growing_conversation_is_one_line_of_exactly_what_was_sampled(
    seed: int, answers: list[str], name: str
) -> None:
    engine, session = open_session(TOKENIZERS[name], seed)
    history = [Message("system", "You act."), Message("user", "do it")]

    async def talk() -> None:
        for answer in answers:
            reply = await session.chat(history, TOOLS)
            history.append(reply.message)
            if reply.message.tool_calls:
                history.extend(Message("tool", answer, tool_call_id=c.id) for c in reply.message.tool_calls)
            else:
                history.append(Message("user", answer))

    asyncio.run(talk())
    (sequence,) = session.recorder.sequences
    chunks = session.recorder.chunks
    assert len(chunks) == len(engine.log) == len(answers)
    for chunk, (request, generation) in zip(chunks, engine.log, strict=True):
        assert sequence.token_ids[: chunk.start] == request.token_ids, "the prompt is what stands before the chunk"
        assert sequence.token_ids[chunk.start : chunk.end] == generation.token_ids
        assert (chunk.logprobs, chunk.versions) == (generation.logprobs, generation.versions)
    spans = [(c.start, c.end) for c in chunks]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), "chunks never overlap"
    assert spans[-1][1] == len(sequence.token_ids)
    assert sequence.messages == tuple(history[: len(sequence.messages)])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(sorted(TOKENIZERS)))
def test_rewritten_and_branching_histories_train_each_sampled_token_once(seed: int, name: str) -> None:
    engine, session = open_session(TOKENIZERS[name], seed)
    rng = random.Random(seed)
    root = (Message("system", "You act."), Message("user", "do it"))
    histories: list[tuple[Message, ...]] = [root]

    async def talk() -> None:
        for i in range(8):
            history = rng.choice(histories)
            if rng.random() < 0.2:  # compression: the agent drops what lies between
                history = (history[0], Message("user", f"summary {i}"))
            quick, last = session.recorder.prompt(history, TOOLS), session.recorder._last
            session.recorder._last = None  # all the way down the tree
            assert session.recorder.prompt(history, TOOLS) == quick
            session.recorder._last = last
            reply = await session.chat(history, TOOLS)
            histories.append((*history, reply.message, Message("user", f"go on {i}")))

    asyncio.run(talk())
    sequences, chunks = session.recorder.sequences, session.recorder.chunks
    assert len(chunks) == 8
    seen: set[tuple[int, int]] = set()
    for chunk, (request, generation) in zip(chunks, engine.log, strict=True):
        line = sequences[chunk.sequence].token_ids
        assert line[: chunk.start] == request.token_ids
        assert line[chunk.start : chunk.end] == generation.token_ids
        tokens = {(chunk.sequence, i) for i in range(chunk.start, chunk.end)}
        assert not tokens & seen
        seen |= tokens
    assert len(seen) == sum(len(g.token_ids) for _, g in engine.log)


def test_sampled_tokens_are_reused_where_tokenizing_the_text_again_gives_others() -> None:
    tokenizer = TOKENIZERS["bpe"]
    recorder = Recorder(tokenizer)
    history = [Message("user", "hi")]
    odd = (*(tokenizer.encode(c)[0] for c in "shell"), *tokenizer.stop_token_ids)
    assert tuple(tokenizer.encode("shell")) != odd[:-1], "the vocabulary has a token for the whole word"
    reply = Message("assistant", "shell")
    recorder.add_sampled(
        recorder.prompt(history), Generation(odd, (0.0,) * len(odd), (0,) * len(odd), "stop"), reply, None
    )
    following = recorder.prompt([*history, reply, Message("user", "go on")])
    first = len(recorder.prompt(history).token_ids)
    assert following.token_ids[first : first + len(odd)] == odd
    text = tokenizer.decode(following.token_ids)
    assert text == tokenizer.render([*history, reply, Message("user", "go on")], prompt=True)


def test_a_reply_cut_at_its_limit_is_closed_with_a_stop_token_that_carries_no_loss() -> None:
    tokenizer = TOKENIZERS["bytes"]
    recorder = Recorder(tokenizer)
    ids = tuple(tokenizer.encode("abc"))
    reply = Message("assistant", "abc")
    chunk = recorder.add_sampled(
        recorder.prompt([Message("user", "x")]), Generation(ids, (0.0,) * 3, (0,) * 3, "length"), reply, None
    )
    prompt = recorder.prompt([Message("user", "x"), reply, Message("user", "y")])
    assert prompt.token_ids[chunk.end] == tokenizer.stop_token_ids[0]
    assert len(chunk) == 3


def test_a_chunk_whose_call_cannot_be_read_is_an_illegal_call() -> None:
    tokenizer = TOKENIZERS["bytes"]
    engine, session = open_session(tokenizer, 0)

    async def broken(request: GenerateRequest) -> Generation:
        ids = (*tokenizer.encode("<tool_call>{oops</tool_call>"), tokenizer.stop_token_ids[0])
        return Generation(ids, (0.0,) * len(ids), (0,) * len(ids), "stop")

    engine.generate = broken  # type: ignore[method-assign]
    reply = asyncio.run(session.chat([Message("user", "x")], TOOLS))
    assert reply.illegal is not None
    assert "not valid JSON" in reply.illegal
    assert session.recorder.chunks[0].error is not None
    assert session.recorder.chunks[0].error.kind == "illegal_call"
    assert "<tool_call>" in reply.message.content, "nothing of the text is lost"


def test_budgets_end_an_episode_with_a_sentence() -> None:
    _, session = open_session(TOKENIZERS["bytes"], 0, max_calls=1)
    asyncio.run(session.chat([Message("user", "x")]))
    with pytest.raises(BudgetExceeded, match="1 model calls"):
        asyncio.run(session.chat([Message("user", "x")]))
    _, narrow = open_session(TOKENIZERS["bytes"], 0, max_context=8)
    with pytest.raises(BudgetExceeded, match="no room"):
        asyncio.run(narrow.chat([Message("user", "a long instruction")]))


def test_a_given_reply_is_recorded_as_not_sampled() -> None:
    tokenizer = TOKENIZERS["bytes"]

    async def show(messages: object, tools: object) -> Reply:
        return Reply(Message("assistant", "", (ToolCall("c0", "shell", '{"command": "ls"}'),)))

    engine = RandomEngine(tokenizer, 0)
    session = Sessions(tokenizer, engine, Hooks()).open("s", Sampling(), max_calls=5, max_context=999, responder=show)
    reply = asyncio.run(session.chat([Message("user", "x")], TOOLS))
    (chunk,) = session.recorder.chunks
    assert not chunk.sampled
    assert not chunk.logprobs
    assert not engine.log
    text = tokenizer.decode(session.recorder.sequences[0].token_ids[chunk.start : chunk.end])
    assert text == '<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>'
    assert reply.finish_reason == "tool_calls"


def test_an_echo_that_says_the_same_in_another_form_goes_on_from_what_was_sampled() -> None:
    tokenizer = TOKENIZERS["bpe"]
    recorder = Recorder(tokenizer)
    start = (Message("system", "Go."), Message("user", "hello"))
    call = ToolCall("call_0_0", "shell", '{"command": "ls", "depth": 2}')
    sampled = (
        *tokenizer.encode(f'so <tool_call>{{"name": "shell", "arguments": {call.arguments}}}</tool_call>'),
        *tokenizer.stop_token_ids,
    )
    generation = Generation(sampled, (-0.1,) * len(sampled), (1,) * len(sampled), "stop")
    recorder.add_sampled(recorder.prompt(start, TOOLS), generation, Message("assistant", "so", (call,)), None)
    answer = Message("tool", "out", tool_call_id="x")
    for echo, changed in (
        (Message("assistant", "so", (call,)), False),
        (Message("assistant", " so\n", (ToolCall("x", "shell", '{"depth":2,"command":"ls"}'),)), True),
        (Message("assistant", "so", (ToolCall("y", "shell", call.arguments),)), True),
    ):
        prompt = recorder.prompt((*start, echo, answer), TOOLS)
        assert prompt.token_ids[: len(recorder.sequences[0].token_ids)] == recorder.sequences[0].token_ids
        assert prompt.changed == changed
    for other in ("So", "so that"):
        assert recorder.prompt((*start, Message("assistant", other, (call,)), answer), TOOLS).known is None
    other_arguments = ToolCall("call_0_0", "shell", '{"command": "ls", "depth": 3}')
    assert recorder.prompt((*start, Message("assistant", "so", (other_arguments,)), answer), TOOLS).known is None
    assert recorder.changed_echoes == 0, "asking what a prompt is records nothing"
    recorder.add_unsampled(
        recorder.prompt((*start, Message("assistant", "so ", (call,)), answer), TOOLS), Message("assistant")
    )
    assert recorder.changed_echoes == 1
