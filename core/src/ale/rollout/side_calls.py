"""Rules that find side calls, the model calls beside an episode's conversation, and keep them out of training."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from ale.trajectory import Chunk, Sequence


def mark_side_calls(sequences: Seq[Sequence], chunks: Seq[Chunk], offers_tools: bool = False) -> tuple[Chunk, ...]:
    """Apply the rule `no_tools`: if any call of the episode offers tools, those that offer none become side calls.
    `offers_tools` says that a call did whose answer is not recorded: a title may be the only one that is.

    Agents make them for titles, summaries and guesses of what the user will ask next. If an agent never offers tools
    (it reads commands out of the text), none of its calls is a side call."""
    if not (offers_tools or any(sequence.tools for sequence in sequences)):
        return tuple(chunks)
    return tuple(replace(c, side=True) if not sequences[c.sequence].tools else c for c in chunks)
