"""Recordings as demonstrations: what is trained on is what the model upstream said, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale.messages import Answer, ChatReply, FinishWord, Message, ModelCall, ToolCall, ToolSpec
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import ChatTokenizer, byte_tokenizer, train_tokenizer
from ale.trajectory import Trajectory
from ale_endpoint.recording import RecordedCall, Recording
from ale_train.batches.retokenization import retokenize
from ale_train.supervised.demonstrations import read_demonstrations

TOOLS = (ToolSpec("shell", "Runs.", {"type": "object", "properties": {"command": {"type": "string"}}}),)
SYSTEM, USER = Message("system", "Act."), Message("user", "Count the files, grün und blau.")
LOOK = Message("assistant", "I look.", (ToolCall("c1", "shell", '{"command": "ls | wc -l"}'),))
OUT = Message("tool", "3", tool_call_id="c1")
DONE = Message("assistant", "There are 3.")


def reply(message: Message, finish: FinishWord = "stop", illegal: str | None = None) -> ChatReply:
    return ChatReply(message, finish, 0, 1, 1, illegal)


def written(path: Path, *calls: tuple[str, tuple[Message, ...], tuple[ChatReply, ...] | str]) -> Path:
    """A recording of calls: session, messages, replies or an error."""
    with Recording(path) as recording:
        for session, messages, made in calls:
            answer = None if isinstance(made, str) else Answer(made, "http://up/v1")
            request = ModelCall(messages, TOOLS, n=1 if answer is None else len(answer.replies))
            error = made if isinstance(made, str) else None
            recording.add(RecordedCall(session, recording.calls[session], 0, 0, request, answer, error))
    return path


def trained_on(trajectory: Trajectory, tokenizer: ChatTokenizer) -> list[str]:
    """The text of each chunk."""
    line = trajectory.sequences[0]
    assert len(trajectory.sequences) == 1
    return [tokenizer.decode(line.token_ids[chunk.start : chunk.end]) for chunk in trajectory.chunks]


def spoken(*messages: Message) -> list[str]:
    return [f"{ReplyForm().write(message)}<|im_end|>" for message in messages]


def in_both(path: Path) -> list[list[list[str]]]:
    """What the trajectories of a recording train on, in bytes and in a vocabulary of their own, as a run does it."""
    given = read_demonstrations([path], byte_tokenizer())
    tokenizer = train_tokenizer([byte_tokenizer().decode(s.token_ids) for t in given for s in t.sequences], 400)
    own = [retokenize(t, tokenizer) for t in given]
    for t in own:
        assert tokenizer.decode(t.sequences[0].token_ids).startswith("<|im_start|>")
    return [[trained_on(t, byte_tokenizer()) for t in given], [trained_on(t, tokenizer) for t in own]]


def test_a_conversation_is_one_line_and_every_reply_is_trained_on(tmp_path: Path) -> None:
    path = written(
        tmp_path / "r.jsonl",
        ("a", (SYSTEM, USER), (reply(LOOK, "tool_calls"),)),
        ("b", (SYSTEM, USER), (reply(DONE),)),
        ("a", (SYSTEM, USER, LOOK, OUT), (reply(DONE),)),
        ("a", (SYSTEM, USER), "The engine is out."),
    )
    assert in_both(path) == [[spoken(LOOK, DONE), spoken(DONE)]] * 2
    (whole, _) = read_demonstrations([path], byte_tokenizer())
    text = byte_tokenizer().decode(whole.sequences[0].token_ids)
    assert text == byte_tokenizer().render((SYSTEM, USER, LOOK, OUT, DONE), TOOLS, prompt=False).rstrip("\n")
    assert not any(chunk.sampled for chunk in whole.chunks)


def test_branches_and_several_answers_are_trained_on_once(tmp_path: Path) -> None:
    other = Message("assistant", "Or not.")
    path = written(
        tmp_path / "r.jsonl",
        ("a", (SYSTEM, USER), (reply(LOOK, "tool_calls"), reply(other))),
        ("a", (SYSTEM, USER, LOOK, OUT), (reply(DONE),)),
        ("a", (SYSTEM, USER, LOOK, Message("tool", "4", tool_call_id="c1")), (reply(other),)),
        ("a", (SYSTEM, Message("user", "Summary: 3 files.")), (reply(DONE),)),
    )
    for made in in_both(path):
        assert made == [spoken(LOOK, DONE), spoken(other), spoken(other), spoken(DONE)]


def test_words_put_into_the_models_mouth_are_not_trained_on(tmp_path: Path) -> None:
    example = (Message("user", "an example"), Message("assistant", "its answer"))
    put = (Message("assistant", "I said something else."), Message("user", "go on"))
    path = written(
        tmp_path / "r.jsonl",
        ("a", (SYSTEM, *example, USER), (reply(LOOK, "tool_calls"),)),
        ("a", (SYSTEM, *example, USER, LOOK, OUT, *put), (reply(DONE),)),
        ("a", (SYSTEM, *example, USER, LOOK, OUT, *put, DONE, USER), (reply(DONE),)),
    )
    for made in in_both(path):
        assert made == [spoken(LOOK), spoken(DONE, DONE)]


def test_cut_and_illegal_replies_are_error_turns(tmp_path: Path) -> None:
    path = written(
        tmp_path / "r.jsonl",
        ("a", (SYSTEM, USER), (reply(DONE, "length"),)),
        ("b", (SYSTEM, USER), (reply(Message("assistant", "<tool_call>x"), illegal="No JSON."),)),
    )
    made = [retokenize(t, byte_tokenizer()) for t in read_demonstrations([path], byte_tokenizer())]
    assert [t.chunks[0].error and t.chunks[0].error.kind for t in made] == ["truncated", "illegal_call"]
    assert [t.chunks[0].finish_reason for t in made] == ["length", "stop"]
    (cut,) = trained_on(made[0], byte_tokenizer())
    assert f"{cut}<|im_end|>" == spoken(DONE)[0], "the model did not stop there"


def test_what_holds_nothing_is_told(tmp_path: Path) -> None:
    empty = written(tmp_path / "r.jsonl", ("a", (SYSTEM, USER), "The engine is out."))
    with pytest.raises(ConfigError, match=r"r\.jsonl holds no answered call"):
        read_demonstrations([empty], byte_tokenizer())
    with pytest.raises(ConfigError, match="there is no run folder, recording or data set"):
        read_demonstrations([tmp_path / "nowhere"], byte_tokenizer())
    with pytest.raises(ConfigError, match="is not a run folder"):
        read_demonstrations([tmp_path], byte_tokenizer())
