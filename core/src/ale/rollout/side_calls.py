"""Rules that find side calls, the model calls beside an episode's conversation, and keep them out of training."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from ale.trajectory import Chunk, Sequence


def without_tools_aside(sequences: Seq[Sequence], chunks: Seq[Chunk]) -> tuple[Chunk, ...]:
    """Apply the rule `no_tools`: for an agent that has tools, calls that offer the model none are side calls.

    Agents make them for titles, summaries and guesses of what the user will ask next. If an agent never offers tools
    (it reads commands out of the text), none of its calls is a side call."""
    if not any(sequence.tools for sequence in sequences):
        return tuple(chunks)
    return tuple(replace(c, side=True) if not sequences[c.sequence].tools else c for c in chunks)
