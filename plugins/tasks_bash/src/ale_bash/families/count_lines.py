"""Count the lines that hold a word, and write the number down: `count`."""

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
    """Draw a task of this family."""
    word, other, third, name = draw_words(rng, 4)
    hits, misses = rng.randint(1, 6), rng.randint(2, 5)
    lines = [word] * hits + [rng.choice((other, third)) for _ in range(misses)]
    rng.shuffle(lines)
    path, out = f"{name}.txt", draw_output_name(rng)
    phrasings = (
        f"Count the lines with {word} in {path}. Write the number to {out}.",
        f"How many lines of {path} have {word}? Write it to {out}.",
    )
    files = {path: "".join(f"{line}\n" for line in lines)}
    facts = {"word": word, "path": path, "out": out}
    return Instance(rng.choice(phrasings), files, content_test(out, str(hits)), f"grep -c {word} {path} > {out}", facts)


def demonstrate(facts: Facts, rng: random.Random, turn: WrongTurn) -> Demonstration:
    """grep in one call, or look at the number and write it; the mistake writes the count of all lines, or the
    matching lines themselves."""
    word, path, out = facts["word"], facts["path"], facts["out"]
    if turn == "error":
        yield shell_call(f"grep -c {word} {word}.txt")
    if turn == "detour":
        yield read_call(rng, path)
    if turn == "mistake":
        yield shell_call(rng.choice((f"wc -l < {path} > {out}", f"grep {word} {path} > {out}")))
        return
    way = rng.random()
    if way < 0.45:
        yield shell_call(f"grep -c {word} {path} > {out}")
    elif way < 0.6:
        yield shell_call(f"grep {word} {path} | wc -l > {out}")
    else:
        answer = yield shell_call(f"grep -c {word} {path}")
        yield write_call(rng, answer.split("\n")[0], out)


COUNT = Family("count", make_instance, demonstrate)
