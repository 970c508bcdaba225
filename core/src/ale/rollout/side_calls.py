"""Which model calls of an episode were made beside its conversation: rules by which they are kept out of training."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from ale.trajectory import Chunk, Sequence


def without_tools_aside(sequences: Seq[Sequence], chunks: Seq[Chunk]) -> tuple[Chunk, ...]:
    """The rule `no_tools`: of an agent that has tools, calls that offer the model none are side calls.

    Agents make them for titles, summaries and guesses of what the user will ask next. Of an agent that never offers tools (it
    reads commands out of the text) no call is one.
    """
    if not any(sequence.tools for sequence in sequences):
        return tuple(chunks)
    return tuple(replace(c, side=True) if not sequences[c.sequence].tools else c for c in chunks)
