"""Recordings as demonstrations: the reader `recording` of the entry-point group `ale.readers`.

Every answered call is taken, session by session through a `Recorder`, so that a conversation is one line of tokens and
a history that the agent rewrote is another. Each line is a trajectory without a score. Where the agent has inserted
assistant messages that the model did not write, the line ends before them and a new one begins after them: they are
context, and nothing is trained on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ale.session.recorder import Recorder
from ale.session.replies import unsampled_error
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import ChatTokenizer
from ale.task import TRAIN
from ale.trajectory import Chunk, FinishReason, Trajectory
from ale.trajectory import Sequence as TokenSequence
from ale_endpoint.dialects.pictures import leave_pictures_out
from ale_endpoint.recording import RecordedCall, read_recording


def read_trajectories(
    path: Path, tokenizer: ChatTokenizer, form: ReplyForm | None, tools: Sequence[Any] = ()
) -> Iterator[Trajectory]:
    """Yield the trajectories of a recording, in tokens of `tokenizer`; each call has tools of its own, not
    `tools`. Raises `ConfigError` if it is no recording."""
    sessions: dict[str, list[RecordedCall]] = {}
    for call in read_recording(path):
        sessions.setdefault(call.session, []).append(call)
    for name, calls in sessions.items():
        yield from _read_session(name, calls, tokenizer, form)


def _read_session(
    name: str, calls: Sequence[RecordedCall], tokenizer: ChatTokenizer, form: ReplyForm | None
) -> Iterator[Trajectory]:
    recorder = Recorder(tokenizer, form)
    for call in calls:
        asked = leave_pictures_out(call.request)
        for reply in call.answer.replies if call.answer is not None else ():
            prompt = recorder.prompt(asked.messages, asked.tools)
            cut: FinishReason = "length" if reply.finish_reason in ("length", "content_filter") else "stop"
            recorder.add_unsampled(prompt, reply.message, error=unsampled_error(reply), finish_reason=cut)
    for index, line in enumerate(recorder.sequences):
        turns = {chunk.turn: chunk for chunk in recorder.chunks if chunk.sequence == index}
        for number, own in enumerate(_split_at_foreign_messages(line, turns)):
            end = own[-1]
            messages = line.messages[: end.turn + 1]
            yield Trajectory(
                id=f"{name}.{index}.{number}",
                task_id=name,
                split=TRAIN,
                stage="recording",
                step=0,
                group=name,
                seed=0,
                policy_version=0,
                sequences=(TokenSequence(line.token_ids[: end.end], messages, line.tools),),
                chunks=tuple(replace(chunk, index=i, sequence=0) for i, chunk in enumerate(own)),
            )


def _split_at_foreign_messages(line: TokenSequence, own: dict[int, Chunk]) -> Iterator[list[Chunk]]:
    """The line's chunks, cut at assistant messages that the model did not write."""
    stretch: list[Chunk] = []
    for at, message in enumerate(line.messages):
        if at in own:
            stretch.append(own[at])
        elif message.role == "assistant" and stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch
