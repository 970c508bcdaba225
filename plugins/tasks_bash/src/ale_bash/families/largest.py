"""Write the largest number of a file to another: `largest`. Sorted as text, another number comes last."""

from __future__ import annotations

import random

from ale_bash.family import Demonstration, Facts, Family, Instance, Turn, holds, look, output, put, shell, words


def make(rng: random.Random) -> Instance:
    """Some numbers of two digits, one of one digit, one just above a hundred."""
    numbers = [*rng.sample(range(10, 100), rng.randint(2, 4)), rng.randint(100, 120), rng.randint(2, 9)]
    rng.shuffle(numbers)
    path, out = f"{words(rng, 1)[0]}.txt", output(rng)
    text = rng.choice(
        (f"Write the largest number of {path} to {out}.", f"Find the largest number in {path}. Write it to {out}.")
    )
    lines = "".join(f"{n}\n" for n in numbers)
    solution = f"sort -n {path} | tail -n1 > {out}"
    return Instance(text, {path: lines}, holds(out, str(max(numbers))), solution, {"path": path, "out": out})


def show(facts: Facts, rng: random.Random, turn: Turn) -> Demonstration:
    """sort -n, from either end, or sort and write what came last; a mistake sorts as text or takes the wrong end."""
    path, out = facts["path"], facts["out"]
    if turn == "error":
        yield shell(f"sort -n {path.removesuffix('.txt')}")
    if turn == "detour":
        yield look(rng, path)
    last, first = "tail -n1", "head -n1"
    if turn == "mistake":
        wrong = (f"sort {path} | {last} > {out}", f"sort -n {path} | {first} > {out}", f"sort -n {path} > {out}")
        yield shell(rng.choice(wrong))
    elif rng.random() < 0.7:
        yield shell(rng.choice((f"sort -n {path} | {last} > {out}", f"sort -nr {path} | {first} > {out}")))
    else:
        answer = yield shell(f"sort -n {path}")
        yield put(rng, answer.split("\n")[-1], out)


LARGEST = Family("largest", make, show)
