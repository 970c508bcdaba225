"""Write a word into a file: `write`. The way in: one call, nothing to look up."""

from __future__ import annotations

import random

from ale_bash.family import Demonstration, Facts, Family, Instance, Turn, holds, look, put, shell, words


def make(rng: random.Random) -> Instance:
    """Write a word into a file."""
    word, name = words(rng, 2)
    path = f"{name}.txt"
    text = rng.choice((f"Write {word} into {path}.", f"Put the word {word} into {path}."))
    return Instance(text, {}, holds(path, word), f"echo {word} > {path}", {"word": word, "path": path})


def show(facts: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """Write; a mistake puts the file's name where the word belongs."""
    path = facts["path"]
    if turn == "error":
        yield look(rng, path)
    if turn == "detour":
        yield shell("ls")
    yield put(rng, path.removesuffix(".txt") if turn == "mistake" else facts["word"], path)


WRITE = Family("write", make, show)
