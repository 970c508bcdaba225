"""Count the lines that hold a word, and write the number down: `count`."""

from __future__ import annotations

import random

from ale_bash.family import Demonstration, Facts, Family, Instance, Turn, holds, look, output, put, shell, words


def make(rng: random.Random) -> Instance:
    """Count the lines of a file that hold a word."""
    word, other, third, name = words(rng, 4)
    hits, misses = rng.randint(1, 6), rng.randint(2, 5)
    lines = [word] * hits + [rng.choice((other, third)) for _ in range(misses)]
    rng.shuffle(lines)
    path, out = f"{name}.txt", output(rng)
    phrasings = (
        f"Count the lines with {word} in {path}. Write the number to {out}.",
        f"How many lines of {path} have {word}? Write it to {out}.",
    )
    files = {path: "".join(f"{line}\n" for line in lines)}
    facts = {"word": word, "path": path, "out": out}
    return Instance(rng.choice(phrasings), files, holds(out, str(hits)), f"grep -c {word} {path} > {out}", facts)


def show(facts: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """grep in one call, or look at the number and write it; a mistake counts all lines or keeps the lines."""
    word, path, out = facts["word"], facts["path"], facts["out"]
    if turn == "error":
        yield shell(f"grep -c {word} {word}.txt")
    if turn == "detour":
        yield look(rng, path)
    if turn == "mistake":
        yield shell(rng.choice((f"wc -l < {path} > {out}", f"grep {word} {path} > {out}")))
        return
    way = rng.random()
    if way < 0.45:
        yield shell(f"grep -c {word} {path} > {out}")
    elif way < 0.6:
        yield shell(f"grep {word} {path} | wc -l > {out}")
    else:
        answer = yield shell(f"grep -c {word} {path}")
        yield put(rng, answer.split("\n")[0], out)


COUNT = Family("count", make, show)
