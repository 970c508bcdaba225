"""Find the file that holds a word, and write down its name: `find`."""

from __future__ import annotations

import random

from ale_bash.family import Demonstration, Facts, Family, Instance, Turn, holds, look, output, put, shell, words


def make(rng: random.Random) -> Instance:
    """Four files, one of them with the word."""
    word, *rest = words(rng, 9)
    names, contents = [f"{n}.log" for n in rest[:4]], rest[4:8]
    hit = rng.randrange(len(names))
    contents[hit] = word
    out = output(rng)
    phrasings = (
        f"Which log file holds {word}? Write its name to {out}.",
        f"Find the log file with {word} and write its name to {out}.",
    )
    files = {name: f"{content}\n" for name, content in zip(names, contents, strict=True)}
    facts = {"word": word, "out": out}
    return Instance(rng.choice(phrasings), files, holds(out, names[hit]), f"grep -l {word} *.log > {out}", facts)


def show(facts: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """grep -l, or look at what grep says and write the name; a mistake writes the line, or all names."""
    word, out = facts["word"], facts["out"]
    if turn == "error":
        yield look(rng, f"{word}.log")
    if turn == "detour":
        yield shell("ls")
    if turn == "mistake":
        yield shell(rng.choice((f"grep {word} *.log > {out}", f"ls *.log > {out}")))
        return
    way = rng.random()
    if way < 0.6:
        yield shell(f"grep -l {word} *.log > {out}")
    else:
        answer = yield shell(f"grep -l {word} *.log" if way < 0.85 else f"grep {word} *.log")
        yield put(rng, answer.split("\n")[0].split(":")[0], out)


FIND = Family("find", make, show)
