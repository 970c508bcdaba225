"""An expert's first chunks are replayed to the token while the agent acts, and a replay that diverges is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.sample_conversation import EXPERT, SAYS, START, TOKENIZERS, TOOLS, act, open_session

from ale.errors import ConfigError, StartDiverged
from ale.messages import Message
from ale.session.session import RecordedSession
from ale.session.tokenizer import ChatTokenizer
from ale.specs.start import Opening, StartContext
from ale.task import Task, TaskTests
from ale.trajectory import Trajectory
from ale_testing.fake_engines import ScriptedEngine
from ale_train.starts import ExpertReplay, expert_steps

TASK = Task(id="t", instruction="do it", tests=TaskTests(command="true"))


def replay(chunks: int, expert: Trajectory = EXPERT, ignore: tuple[str, ...] = ()) -> Opening:
    """The start in a rollout whose sandbox is new."""
    return ExpertReplay(expert, chunks, ignore).open(StartContext(TASK, None, None, 1.0, True, None))  # type: ignore[arg-type]


def opened(
    start: Opening | None, texts: Sequence[str], tokenizer: ChatTokenizer | None = None
) -> tuple[RecordedSession, ScriptedEngine]:
    return open_session(start.respond if start else None, texts, tokenizer)


@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 4])
async def test_the_first_chunks_are_the_experts_very_tokens_and_the_rest_the_policys(chunks: int) -> None:
    session, engine = opened(start := replay(chunks), ["mine"])
    history = await act(session, ["out 0", "out 1", "out 2"])
    start.check()
    (line,) = session.recorder.sequences
    (wanted,) = EXPERT.sequences
    for old, new in zip(EXPERT.chunks[:chunks], session.recorder.chunks, strict=False):
        assert not new.sampled
        assert line.token_ids[new.start : new.end] == wanted.token_ids[old.start : old.end]
    assert [c.sampled for c in session.recorder.chunks] == [False] * chunks + [True] * (chunks < 4)
    assert len(engine.requests) == (chunks < 4)
    assert history[-1].content == ("mine" if chunks < 4 else "done")


async def test_the_text_is_replayed_where_the_vocabulary_is_another() -> None:
    tokenizer = TOKENIZERS["bpe"]
    session, _ = opened(start := replay(4), [], tokenizer)
    history = await act(session, ["out 0", "out 1", "out 2"])
    assert history[-1].content == "done"
    start.check()
    first = session.recorder.chunks[0]
    text = tokenizer.decode(session.recorder.sequences[0].token_ids[first.start : first.end])
    assert '"step 0"' in text


async def test_another_answer_of_the_environment_is_a_diverged_replay() -> None:
    session, _ = opened(replay(3), ["mine"])
    with pytest.raises(StartDiverged, match=r"After chunk 2 .* answered 'else', where it had answered 'out 1'"):
        await act(session, ["out 0", "else", "out 2"])
    with pytest.raises(StartDiverged):
        await session.chat(START, TOOLS)
    assert isinstance(session.fault, StartDiverged)
    assert len(session.recorder.chunks) == 2, "what was recorded before stays"


async def test_the_state_in_which_the_policy_takes_over_is_the_experts() -> None:
    session, engine = opened(replay(2), ["mine"])
    with pytest.raises(StartDiverged, match=r"After chunk 2 .* answered 'else', where it had answered 'out 1'"):
        await act(session, ["out 0", "else"])
    assert engine.requests == []


async def test_what_may_differ_is_ignored() -> None:
    session, _ = opened(start := replay(3, ignore=(r"\d+",)), ["mine"])
    await act(session, ["out 17", "out 99", "out 2"])
    start.check()


async def test_an_agent_that_ends_before_the_expert_does_has_diverged() -> None:
    session, _ = opened(start := replay(3), ["mine"])
    await session.chat(START, TOOLS)
    with pytest.raises(StartDiverged, match="ended after 1 of the 3 chunks"):
        start.check()


async def test_a_policy_that_was_never_asked_has_not_failed() -> None:
    session, _ = opened(start := replay(2), ["mine"])
    history = list(START)
    for answer in ("out 0", "out 1"):
        reply = (await session.chat(history, TOOLS)).message
        history += [reply, Message("tool", answer, tool_call_id=reply.tool_calls[0].id)]
    with pytest.raises(
        StartDiverged, match=r"ended after 2 of the 2 chunks .* before the policy was asked; rollout\.max_calls"
    ):
        start.check()
    await session.chat(history, TOOLS)
    start.check()


async def test_an_unreadable_call_of_an_expert_is_one_in_the_replay_too() -> None:
    session, _ = opened(None, ["<tool_call>\n{nothing\n</tool_call>", "done"])
    first = await session.chat(START, TOOLS)
    history = (*START, first.message, Message("user", f"Error: {first.illegal}"))
    await session.chat(history, TOOLS)
    made = replace(EXPERT, sequences=session.recorder.sequences, chunks=session.recorder.chunks)
    again, _ = opened(replay(1, made), ["mine"])
    replayed = await again.chat(START, TOOLS)
    assert first.illegal is not None
    assert replayed.illegal == first.illegal
    assert [chunk.error for chunk in again.recorder.chunks] == [made.chunks[0].error]
    assert (await again.chat(history, TOOLS)).message.content == "mine"


async def test_a_rewritten_context_has_diverged() -> None:
    session, _ = opened(replay(3), ["mine"])
    await session.chat(START, TOOLS)
    with pytest.raises(StartDiverged, match="does not continue chunk 1"):
        await session.chat((*START, Message("user", "a summary")), TOOLS)


async def forgetful(session: RecordedSession, summary: str) -> list[Message]:
    """An agent that goes on from a summary after its first two calls, and asks about the first context once more at the
    end."""
    first = list(START)
    for answer in ("out 0", "out 1"):
        reply = (await session.chat(first, TOOLS)).message
        first += [reply, Message("tool", answer, tool_call_id=reply.tool_calls[0].id)]
    reply = (await session.chat([START[0], Message("user", summary)], TOOLS)).message
    second = [Message("tool", "out 2", tool_call_id=reply.tool_calls[0].id)]
    await session.chat([START[0], Message("user", summary), reply, *second], TOOLS)
    return [(await session.chat(first, TOOLS)).message]


@pytest.mark.parametrize("chunks", [2, 3, 4, 5])
async def test_an_agent_that_begins_a_new_context_is_replayed_past_it(chunks: int) -> None:
    session, _ = opened(None, [*SAYS, "bye"])
    await forgetful(session, "so far")
    made = replace(EXPERT, sequences=session.recorder.sequences, chunks=session.recorder.chunks)
    assert len(made.sequences) == 2

    again, _ = opened(start := replay(chunks, made), [*SAYS, "bye"][chunks:])
    assert (await forgetful(again, "so far"))[0].content == "bye"
    start.check()
    assert [chunk.sampled for chunk in again.recorder.chunks] == [False] * chunks + [True] * (5 - chunks)
    assert again.recorder.sequences == made.sequences

    other, _ = opened(start := replay(chunks, made), [*SAYS, "bye"][chunks:])
    with pytest.raises(StartDiverged, match=r"After chunk 2 .* answered 'another', where it had answered 'so far'"):
        await forgetful(other, "another")


async def test_all_of_a_new_context_has_to_be_the_experts_also_where_its_last_reply_is_kept() -> None:
    async def condense(session: RecordedSession, kept: list[Message]) -> str:
        first = list(START)
        for answer in ("out 0", "out 1"):
            reply = (await session.chat(first, TOOLS)).message
            first += [reply, Message("tool", answer, tool_call_id=reply.tool_calls[0].id)]
        return (await session.chat([START[0], *kept, *first[-2:]], TOOLS)).message.content

    session, _ = opened(None, [*SAYS[:2], "done"])
    await condense(session, [Message("user", "so far")])
    made = replace(EXPERT, sequences=session.recorder.sequences, chunks=session.recorder.chunks)
    assert len(made.sequences) == 2
    for chunks in (2, 3):
        again, _ = opened(start := replay(chunks, made), ["done"])
        assert await condense(again, [Message("user", "so far")]) == "done"
        start.check()
        for other in ([Message("user", "another")], [], [Message("user", "so far"), Message("user", "more")]):
            again, _ = opened(start := replay(chunks, made), ["done"])
            with pytest.raises(StartDiverged, match="After chunk 2 of the expert"):
                await condense(again, other)


async def test_side_calls_are_the_policys() -> None:
    session, _ = opened(start := replay(4), ["A title"])
    assert (await session.chat((Message("user", "Make a title."),))).message.content == "A title"
    assert (await act(session, ["out 0", "out 1", "out 2"]))[-1].content == "done"
    start.check()


def test_side_calls_of_an_expert_are_not_replayed() -> None:
    chunks = (replace(EXPERT.chunks[0], side=True), *EXPERT.chunks[1:])
    assert len(expert_steps(replace(EXPERT, chunks=chunks))) == 3


def test_more_chunks_than_the_expert_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="has 4 chunks; 5 cannot be replayed"):
        replay(5)
