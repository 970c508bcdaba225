"""Plain text as sequences of tokens, streamed: what is held is one piece of a file and a window of sequences, whatever a corpus has.

1. Documents are the lines of `.jsonl` (key `text`) and the whole of other files, which are read in pieces of some 64,000 characters,
   cut at the end of a line or word. Each document is followed by the tokenizer's first stop token.
2. The tokens of all documents are one stream, cut into sequences of equal length. Each begins with the last token of the one before it:
   the first token of a sequence is predicted by nothing, and so every token but the stream's first is predicted exactly once.
3. An epoch is all files in an order drawn from the seed; sequences are shuffled within a window. What is left at the end of one
   epoch begins the next.
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

from ale.endpoint.tokenizer import ChatTokenizer
from ale.errors import ConfigError
from ale.supervised_config import TEXT_SUFFIXES

PIECE_CHARS = 1 << 16
WINDOW = 256
"""Sequences among which the order is drawn."""

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Packed:
    """A sequence of tokens, and in which epoch (from 1) it was completed."""

    token_ids: Tokens
    epoch: int


def text_files(paths: Sequence[Path], key: str) -> list[Path]:
    """The files of text among files and folders, sorted. Raises `ConfigError`, which names `key`."""
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


def pieces(path: Path) -> Iterator[tuple[str, bool]]:
    """The text of a file piece by piece, and whether a document ends with it. Raises `ConfigError` where it cannot be read."""
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


def packed_once(files: Sequence[Path], tokenizer: ChatTokenizer, length: int) -> Generator[Tokens, None, None]:
    """The sequences of all files in their order; the last one is what is left, of two tokens at least."""
    held: list[int] = []
    for ids in _tokens(files, tokenizer):
        held += ids
        yield from _full(held, length)
    if len(held) > 1:
        yield np.array(held, dtype=np.int32)


def packed(files: Sequence[Path], tokenizer: ChatTokenizer, length: int, seed: int) -> Generator[Packed, None, None]:
    """Sequences of `length` tokens without end, epoch after epoch. Raises `ConfigError` where there is no text at all."""
    rng = random.Random(seed)
    held: list[int] = []
    for epoch in itertools.count(1):
        window: list[Tokens] = []
        empty = True
        for ids in _tokens(rng.sample(list(files), len(files)), tokenizer):
            empty = False
            held += ids
            for sequence in _full(held, length):
                window.append(sequence)
                if len(window) == WINDOW:
                    yield from _drawn(window, epoch, rng)
        if empty:
            raise ConfigError(f"There is no text in {', '.join(map(str, files))}.")
        yield from _drawn(window, epoch, rng)


def _tokens(files: Sequence[Path], tokenizer: ChatTokenizer) -> Iterator[list[int]]:
    """Token ids piece by piece, a stop token after each document that has any."""
    stop = list(tokenizer.stop_token_ids[:1])
    for path in files:
        begun = False
        for text, ends in pieces(path):
            ids = tokenizer.encode(text)
            begun = begun or bool(ids)
            if ends and begun:
                ids, begun = ids + stop, False
            if ids:
                yield ids


def _full(held: list[int], length: int) -> Iterator[Tokens]:
    """Takes whole sequences out of `held`, which keeps the last token of each."""
    at = 0
    while len(held) - at >= length:
        yield np.array(held[at : at + length], dtype=np.int32)
        at += length - 1
    del held[:at]


def _drawn(window: list[Tokens], epoch: int, rng: random.Random) -> Iterator[Packed]:
    """The window in another order; it is empty afterwards."""
    rng.shuffle(window)
    while window:
        yield Packed(window.pop(), epoch)


def _text_of(line: str, path: Path, number: int) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{path}, line {number}: this is not JSON ({error}).") from None
    text = value.get("text") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise ConfigError(f"{path}, line {number}: there is no key 'text' with a text.")
    return text
