"""The bytes of sampled tokens: together they are the text of the reply, also where a character is cut over tokens.

Tokens are decoded one after the other. Those in the middle of a character decode to U+FFFD until the last of them is
there; their own bytes are read from the vocabulary, as byte-level tokenizers (`Ã©`) and SentencePiece (`<0xC3>`) write
them. Where the vocabulary does not say, the last of them gets all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from ale.messages import TokenLogprob, whole_characters
from ale.session.tokenizer import ChatTokenizer
from ale.specs.engine import Generation

UNREADABLE = "\ufffd"
CONTEXT = 8
"""Tokens before a token with which it is decoded: some tokenizers write a space or not by what stands before."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def describe_tokens(tokenizer: ChatTokenizer, generation: Generation, text: str) -> Iterator[TokenLogprob]:
    """Yield the tokens of a generation whose text is `text`: what stands after it, as a stop text, has no bytes."""
    left = len(whole_characters(text).encode())
    ids = generation.token_ids
    for token, logprob, data in zip(ids, generation.logprobs, token_bytes(tokenizer, ids), strict=False):
        own = data[:left] if left else None
        left -= len(own or b"")
        yield TokenLogprob(tokenizer.decode([token]), logprob, own)


def token_bytes(tokenizer: ChatTokenizer, token_ids: Sequence[int]) -> list[bytes]:
    """Return the bytes of each token; joined, they are the decoded text."""
    found: list[bytes] = []
    begins = 0
    for end in range(1, len(token_ids) + 1):
        context = token_ids[max(0, begins - CONTEXT) : begins]
        before = tokenizer.decode(context)
        added = tokenizer.decode([*context, *token_ids[begins:end]])[len(before) :]
        if added.endswith(UNREADABLE) and end < len(token_ids):
            continue  # a character is not complete yet
        found += _share(tokenizer, token_ids[begins:end], added)
        begins = end
    return found


def _share(tokenizer: ChatTokenizer, group: Sequence[int], text: str) -> list[bytes]:
    """Return the part of each of these tokens in their common text."""
    whole = whole_characters(text).encode()
    if len(group) == 1 and not text.endswith(UNREADABLE):
        return [whole]
    parts = [_own_bytes(tokenizer.piece(token) or "") for token in group]
    known = [part for part in parts if part is not None]
    if len(known) == len(parts) and b"".join(known).decode("utf-8", "replace") == text:
        return known
    return [*[b""] * (len(group) - 1), whole]


def _own_bytes(piece: str) -> bytes | None:
    """Return the bytes that a vocabulary writes as this piece; None if it cannot be said."""
    if byte := _BYTE.fullmatch(piece):
        return bytes([int(byte[1], 16)])
    table = _byte_of_character()
    return bytes(table[c] for c in piece) if all(c in table for c in piece) else None


@cache
def _byte_of_character() -> dict[str, int]:
    """Return the byte that each character stands for in a byte-level vocabulary: those that can be printed stand for
    themselves, the others for the characters from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}
