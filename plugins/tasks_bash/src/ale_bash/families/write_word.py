"""Write a word into a file: `write`. The easiest family: one call, nothing to look up."""

from __future__ import annotations

import random

from ale_bash.family import (
    Demonstration,
    Facts,
    Family,
    Instance,
    WrongTurn,
    content_test,
    draw_words,
    read_call,
    shell_call,
    write_call,
)


def make_instance(rng: random.Random) -> Instance:
    """Write a word into a file."""
    word, name = draw_words(rng, 2)
    path = f"{name}.txt"
    text = rng.choice((f"Write {word} into {path}.", f"Put the word {word} into {path}."))
    return Instance(text, {}, content_test(path, word), f"echo {word} > {path}", {"word": word, "path": path})


def demonstrate(facts: Facts, rng: random.Random, turn: WrongTurn) -> Demonstration:
    """Write; a mistake puts the file's name where the word belongs."""
    path = facts["path"]
    if turn == "error":
        yield read_call(rng, path)
    if turn == "detour":
        yield shell_call("ls")
    yield write_call(rng, path.removesuffix(".txt") if turn == "mistake" else facts["word"], path)


WRITE = Family("write", make_instance, demonstrate)
