"""Follow file names from file to file to a word: `follow`. A stray file holds another word, off the path."""

from __future__ import annotations

import random
from itertools import pairwise

from ale_bash.family import Demonstration, Facts, Family, Instance, Turn, holds, look, output, put, shell, words

MAX_READS = 4


def make(rng: random.Random) -> Instance:
    """A chain of two or three files, the last of which holds the word."""
    reads = rng.randint(2, 3)
    *names, stray, other, word = words(rng, reads + 3)
    paths = [f"{n}.txt" for n in names]
    files = {path: f"next {after}\n" for path, after in pairwise(paths)}
    files |= {paths[-1]: f"word {word}\n", f"{stray}.txt": f"word {other}\n"}
    out = output(rng)
    phrasings = (
        f"Start at {paths[0]} and follow the files. Write the word to {out}.",
        f"Follow the files from {paths[0]} on to a word. Write it to {out}.",
    )
    walk = f"f={paths[0]}\nwhile read -r kind value < $f && [ $kind = next ]; do f=$value; done"
    facts = {"path": paths[0], "out": out}
    return Instance(rng.choice(phrasings), files, holds(out, word), f"{walk}\necho $value > {out}", facts)


def show(facts: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """Read on until there is a word; a mistake writes down the first name."""
    path = facts["path"]
    if turn == "error":
        yield look(rng, path.removesuffix(".txt"))
    if turn == "detour":
        yield shell("ls")
    for _ in range(MAX_READS):
        said = (yield look(rng, path)).split()
        if len(said) != 2:
            return
        if said[0] == "word" or turn == "mistake":
            yield put(rng, said[1], facts["out"])
            return
        path = said[1]


FOLLOW = Family("follow", make, show)
