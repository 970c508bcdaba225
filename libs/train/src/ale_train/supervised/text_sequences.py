"""Streams plain text as sequences of tokens; it holds one piece of a file and a window of sequences.

1. A document is a line of a `.jsonl` file (key `text`) or the whole of another file. Files are read in pieces of about
   64,000 characters, cut at the end of a line or word. Each document is followed by the tokenizer's first stop token.
2. The tokens of all documents form one stream, which is cut into sequences of equal length. Each sequence begins with
   the last token of the one before it. The first token of a sequence is not predicted, so every token of the stream
   except its first is predicted exactly once.
3. An epoch reads all files in an order drawn from the seed; sequences are shuffled within a window. Tokens that are
   left over at the end of an epoch begin the next one.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ale.errors import ConfigError
from ale.session.tokenizer import ChatTokenizer
from ale_train.config.supervised import TEXT_SUFFIXES

PIECE_CHARS = 1 << 16
WINDOW = 256
"""The number of sequences that are shuffled together."""

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TextSequence:
    """Holds a sequence of tokens and the epoch (from 1) in which it was completed."""

    token_ids: Tokens
    epoch: int


def text_files(paths: Sequence[Path], key: str) -> list[Path]:
    """Return the text files among files and folders, sorted. Raises `ConfigError`, which names `key`."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix in TEXT_SUFFIXES and p.is_file())
            if not inside:
                raise ConfigError(f"{key}: the folder {path} holds no file of text ({', '.join(TEXT_SUFFIXES)}).")
            found += inside
        elif not path.is_file():
            raise ConfigError(f"{key}: there is no file or folder {path}.")
        elif path.suffix not in TEXT_SUFFIXES:
            raise ConfigError(f"{key}: {path} is no file of text that can be read ({', '.join(TEXT_SUFFIXES)}).")
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def read_pieces(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the text of a file piece by piece, and whether a document ends with the piece. Raises `ConfigError` if the
    file cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            if path.suffix == ".jsonl":
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield _text_of(line, path, number), True
                return
            held = file.read(PIECE_CHARS)
            while block := file.read(PIECE_CHARS):
                middle = len(held) // 2
                cut = held.rfind("\n", middle) + 1 or held.rfind(" ", middle) + 1 or len(held)
                yield held[:cut], False
                held = held[cut:] + block
            yield held, True
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None


def sequences_once(files: Sequence[Path], tokenizer: ChatTokenizer, length: int) -> Generator[Tokens, None, None]:
    """Yield the sequences of all files in their order; the last one may be shorter, but has at least two tokens."""
    held: list[int] = []
    for ids in _tokens(files, tokenizer):
        held += ids
        yield from _take_full_sequences(held, length)
    if len(held) > 1:
        yield np.array(held, dtype=np.int32)


def stream_sequences(
    files: Sequence[Path], tokenizer: ChatTokenizer, length: int, seed: int
) -> Generator[TextSequence, None, None]:
    """Yield sequences of `length` tokens without end, epoch after epoch. Raises `ConfigError` if there is no text at
    all."""
    rng = random.Random(seed)
    held: list[int] = []
    for epoch in itertools.count(1):
        window: list[Tokens] = []
        empty = True
        for ids in _tokens(rng.sample(list(files), len(files)), tokenizer):
            empty = False
            held += ids
            for sequence in _take_full_sequences(held, length):
                window.append(sequence)
                if len(window) == WINDOW:
                    yield from _draw_all(window, epoch, rng)
        if empty:
            raise ConfigError(f"There is no text in {', '.join(map(str, files))}.")
        yield from _draw_all(window, epoch, rng)


def _tokens(files: Sequence[Path], tokenizer: ChatTokenizer) -> Iterator[list[int]]:
    """Yield token ids piece by piece; each document that is not empty has the tokens around it that the tokenizer
    writes around a text, and at least an end token."""
    start, end = tokenizer.around_text
    for path in files:
        begun = False
        for text, ends in read_pieces(path):
            ids = tokenizer.encode(text)
            if ids and not begun:
                ids, begun = [*start, *ids], True
            if ends and begun:
                ids, begun = [*ids, *end], False
            if ids:
                yield ids


def _take_full_sequences(held: list[int], length: int) -> Iterator[Tokens]:
    """Take all full sequences out of `held`, in which the last token of each stays."""
    at = 0
    while len(held) - at >= length:
        yield np.array(held[at : at + length], dtype=np.int32)
        at += length - 1
    del held[:at]


def _draw_all(window: list[Tokens], epoch: int, rng: random.Random) -> Iterator[TextSequence]:
    """Yield the sequences of the window in a random order, until it is empty."""
    rng.shuffle(window)
    while window:
        yield TextSequence(window.pop(), epoch)


def _text_of(line: str, path: Path, number: int) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{path}, line {number}: this is not JSON ({error}).") from None
    text = value.get("text") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise ConfigError(f"{path}, line {number}: there is no key 'text' with a text.")
    return text
