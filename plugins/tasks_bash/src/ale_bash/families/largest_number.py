"""Write the largest number of a file to another: `largest`. Sorted as text, another number comes last."""

from __future__ import annotations

import random

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


def make_instance(rng: random.Random) -> Instance:
    """Some numbers of two digits, one of one digit, one just above a hundred."""
    numbers = [*rng.sample(range(10, 100), rng.randint(2, 4)), rng.randint(100, 120), rng.randint(2, 9)]
    rng.shuffle(numbers)
    path, out = f"{draw_words(rng, 1)[0]}.txt", draw_output_name(rng)
    text = rng.choice(
        (f"Write the largest number of {path} to {out}.", f"Find the largest number in {path}. Write it to {out}.")
    )
    lines = "".join(f"{n}\n" for n in numbers)
    solution = f"sort -n {path} | tail -n1 > {out}"
    return Instance(text, {path: lines}, content_test(out, str(max(numbers))), solution, {"path": path, "out": out})


def demonstrate(facts: Facts, rng: random.Random, turn: WrongTurn) -> Demonstration:
    """sort -n, from either end, or sort and write what came last; a mistake sorts as text or takes the wrong end."""
    path, out = facts["path"], facts["out"]
    if turn == "error":
        yield shell_call(f"sort -n {path.removesuffix('.txt')}")
    if turn == "detour":
        yield read_call(rng, path)
    last, first = "tail -n1", "head -n1"
    if turn == "mistake":
        wrong = (f"sort {path} | {last} > {out}", f"sort -n {path} | {first} > {out}", f"sort -n {path} > {out}")
        yield shell_call(rng.choice(wrong))
    elif rng.random() < 0.7:
        yield shell_call(rng.choice((f"sort -n {path} | {last} > {out}", f"sort -nr {path} | {first} > {out}")))
    else:
        answer = yield shell_call(f"sort -n {path}")
        yield write_call(rng, answer.split("\n")[-1], out)


LARGEST = Family("largest", make_instance, demonstrate)
