"""Demonstrations that are there already: trajectories of other runs, and recordings of the endpoint.

1. Of a run folder: every trajectory of the split `train` that is not rejected, whoever made it.
2. Of a recording: every answered call, session by session through a `Recorder`, so that a conversation is one line of tokens and
   a history that the agent rewrote is another. Each line is a trajectory without a score. Where an agent has put words into the
   model's mouth, the line ends before them and begins anew after them: they are context, and trained on by nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ale.endpoint.recorder import Recorder
from ale.endpoint.recording import RecordedCall, read_recording
from ale.endpoint.replies import given_error
from ale.endpoint.reply_form import ReplyForm
from ale.endpoint.tokenizer import ChatTokenizer
from ale.errors import ConfigError
from ale.pipeline.bootstrap import retokenize
from ale.store import RunStore
from ale.task import TRAIN
from ale.trajectory import Chunk, FinishReason, Trajectory
from ale.trajectory import Sequence as TokenSequence


def read_demonstrations(
    paths: Sequence[Path],
    tokenizer: ChatTokenizer,
    form: ReplyForm | None = None,
    *,
    key: str = "sft.demonstrations.data",
) -> list[Trajectory]:
    """The demonstrations of run folders and recordings, in tokens of `tokenizer`. Raises `ConfigError`, which names `key`, also
    where one has none."""
    found: list[Trajectory] = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{key}: there is no run folder or recording {path}.")
        made = [*(_of_run(path, tokenizer, form) if path.is_dir() else _of_recording(path, tokenizer, form))]
        if not made:
            what = f"trajectory of the split '{TRAIN}' that could be used" if path.is_dir() else "answered call"
            raise ConfigError(f"{key}: {path} holds no {what}.")
        found += made
    return found


def _of_run(folder: Path, tokenizer: ChatTokenizer, form: ReplyForm | None) -> Iterator[Trajectory]:
    with RunStore.open(folder) as store:
        for trajectory in store.trajectories("split = ? AND rejected IS NULL", (TRAIN,)):
            yield retokenize(trajectory, tokenizer, form)


def _of_recording(path: Path, tokenizer: ChatTokenizer, form: ReplyForm | None) -> Iterator[Trajectory]:
    sessions: dict[str, list[RecordedCall]] = {}
    for call in read_recording(path):
        sessions.setdefault(call.session, []).append(call)
    for name, calls in sessions.items():
        yield from _of_session(name, calls, tokenizer, form)


def _of_session(
    name: str, calls: Sequence[RecordedCall], tokenizer: ChatTokenizer, form: ReplyForm | None
) -> Iterator[Trajectory]:
    recorder = Recorder(tokenizer, form)
    for call in calls:
        asked = call.request
        for reply in call.answer.replies if call.answer is not None else ():
            prompt = recorder.prompt(asked.messages, asked.tools)
            cut: FinishReason = "length" if reply.finish_reason == "length" else "stop"
            recorder.add_given(prompt, reply.message, error=given_error(reply), finish_reason=cut)
    for index, line in enumerate(recorder.sequences):
        turns = {chunk.turn: chunk for chunk in recorder.chunks if chunk.sequence == index}
        for number, own in enumerate(_stretches(line, turns)):
            end = own[-1]
            messages = line.messages[: end.turn + 1]
            yield Trajectory(
                id=f"{name}.{index}.{number}", task_id=name, split=TRAIN, stage="recording", step=0, group=name, seed=0,
                policy_version=0, sequences=(TokenSequence(line.token_ids[: end.end], messages, line.tools),),
                chunks=tuple(replace(chunk, index=i, sequence=0) for i, chunk in enumerate(own)),
            )  # fmt: skip


def _stretches(line: TokenSequence, own: dict[int, Chunk]) -> Iterator[list[Chunk]]:
    """The line's chunks, cut where an assistant's message stands between them that is none."""
    stretch: list[Chunk] = []
    for at, message in enumerate(line.messages):
        if at in own:
            stretch.append(own[at])
        elif message.role == "assistant" and stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch
