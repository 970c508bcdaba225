"""Converts a recorded conversation to another vocabulary."""

from __future__ import annotations

from dataclasses import replace

from ale.session.recorder import Recorder
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import ChatTokenizer
from ale.trajectory import Trajectory


def retokenize(trajectory: Trajectory, tokenizer: ChatTokenizer, form: ReplyForm | None = None) -> Trajectory:
    """Return the same demonstration in another vocabulary, recorded in the way of the policy's own rollouts.

    Replies and their errors stay; the token ids are those that the endpoint would have given to the policy.
    """
    recorder = Recorder(tokenizer, form)
    for chunk in trajectory.chunks:
        sequence, turn = trajectory.sequences[chunk.sequence], chunk.turn
        prompt = recorder.prompt(sequence.messages[:turn], sequence.tools)
        made = recorder.add_unsampled(prompt, sequence.messages[turn], finish_reason=chunk.finish_reason)
        if chunk.error is not None:
            recorder.mark_error(made.index, chunk.error)
    chunks = tuple(replace(c, side=old.side) for c, old in zip(recorder.chunks, trajectory.chunks, strict=True))
    return replace(trajectory, sequences=recorder.sequences, chunks=chunks)
