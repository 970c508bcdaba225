"""Find the file that holds a word, and write down its name: `find`."""

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
    """Make a task with four files, one of which holds the word."""
    word, *rest = draw_words(rng, 9)
    names, contents = [f"{n}.log" for n in rest[:4]], rest[4:8]
    hit = rng.randrange(len(names))
    contents[hit] = word
    out = draw_output_name(rng)
    phrasings = (
        f"Which log file holds {word}? Write its name to {out}.",
        f"Find the log file with {word} and write its name to {out}.",
    )
    files = {name: f"{content}\n" for name, content in zip(names, contents, strict=True)}
    facts = {"word": word, "out": out}
    return Instance(rng.choice(phrasings), files, content_test(out, names[hit]), f"grep -l {word} *.log > {out}", facts)


def demonstrate(facts: Facts, rng: random.Random, turn: WrongTurn) -> Demonstration:
    """Use grep -l, or read grep's output and write the name; a mistake writes the line, or all names."""
    word, out = facts["word"], facts["out"]
    if turn == "error":
        yield read_call(rng, f"{word}.log")
    if turn == "detour":
        yield shell_call("ls")
    if turn == "mistake":
        yield shell_call(rng.choice((f"grep {word} *.log > {out}", f"ls *.log > {out}")))
        return
    way = rng.random()
    if way < 0.6:
        yield shell_call(f"grep -l {word} *.log > {out}")
    else:
        answer = yield shell_call(f"grep -l {word} *.log" if way < 0.85 else f"grep {word} *.log")
        yield write_call(rng, answer.split("\n")[0].split(":")[0], out)


FIND = Family("find", make_instance, demonstrate)
