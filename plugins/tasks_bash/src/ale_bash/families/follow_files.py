"""Follow file names from file to file to a word: `follow`. A stray file holds another word, off the path."""

from __future__ import annotations

import random
from itertools import pairwise

from ale_bash.family import (
    Demonstration,
    Facts,
    Family,
    Instance,
    WrongTurn,
    content_test,
    draw_output_name,
    draw_words,
    read_call,
    shell_call,
    write_call,
)

MAX_READS = 4


def make_instance(rng: random.Random) -> Instance:
    """A chain of two or three files, the last of which holds the word."""
    reads = rng.randint(2, 3)
    *names, stray, other, word = draw_words(rng, reads + 3)
    paths = [f"{n}.txt" for n in names]
    files = {path: f"next {after}\n" for path, after in pairwise(paths)}
    files |= {paths[-1]: f"word {word}\n", f"{stray}.txt": f"word {other}\n"}
    out = draw_output_name(rng)
    phrasings = (
        f"Start at {paths[0]} and follow the files. Write the word to {out}.",
        f"Follow the files from {paths[0]} on to a word. Write it to {out}.",
    )
    walk = f"f={paths[0]}\nwhile read -r kind value < $f && [ $kind = next ]; do f=$value; done"
    facts = {"path": paths[0], "out": out}
    return Instance(rng.choice(phrasings), files, content_test(out, word), f"{walk}\necho $value > {out}", facts)


def demonstrate(facts: Facts, rng: random.Random, turn: WrongTurn) -> Demonstration:
    """Read on until there is a word; a mistake writes down the first name."""
    path = facts["path"]
    if turn == "error":
        yield read_call(rng, path.removesuffix(".txt"))
    if turn == "detour":
        yield shell_call("ls")
    for _ in range(MAX_READS):
        words = (yield read_call(rng, path)).split()
        if len(words) != 2:
            return
        if words[0] == "word" or turn == "mistake":
            yield write_call(rng, words[1], facts["out"])
            return
        path = words[1]


FOLLOW = Family("follow", make_instance, demonstrate)
