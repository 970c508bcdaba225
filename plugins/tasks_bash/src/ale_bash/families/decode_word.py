"""Decode a word: `decode`. The file's ending says how it was encoded: backwards, in base64, or in capitals."""

from __future__ import annotations

import base64
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

DECODERS = {"rev": "rev {path}", "b64": "base64 -d {path}", "up": "tr A-Z a-z < {path}"}


def _encode(kind: str, word: str) -> str:
    if kind == "rev":
        return word[::-1]
    return base64.b64encode(word.encode()).decode() if kind == "b64" else word.upper()


def make_instance(rng: random.Random) -> Instance:
    """An encoded word in a file."""
    word, name = draw_words(rng, 2)
    kind = rng.choice(list(DECODERS))
    path, out = f"{name}.{kind}", draw_output_name(rng)
    text = rng.choice((f"Decode {path} into {out}.", f"The word in {path} is encoded. Write it plain to {out}."))
    solution = f"{DECODERS[kind].format(path=path)} > {out}"
    return Instance(
        text, {path: _encode(kind, word) + "\n"}, content_test(out, word), solution, {"path": path, "out": out}
    )


def demonstrate(facts: Facts, rng: random.Random, turn: WrongTurn) -> Demonstration:
    """The decoder that the ending names, into the file or read and written; a mistake takes another, or copies."""
    path, out = facts["path"], facts["out"]
    kind = path.rpartition(".")[2]
    if turn == "error":
        yield shell_call(f"base64 -d {path.removesuffix('.' + kind)}")
    if turn == "detour":
        yield read_call(rng, path)
    commands = {k: command.format(path=path) for k, command in DECODERS.items()}
    if turn == "mistake":
        wrong = [command for k, command in commands.items() if k != kind]
        yield shell_call(f"{rng.choice([*wrong, f'cat {path}'])} > {out}")
    elif rng.random() < 0.7:
        yield shell_call(f"{commands[kind]} > {out}")
    else:
        answer = yield shell_call(commands[kind])
        yield write_call(rng, answer, out)


DECODE = Family("decode", make_instance, demonstrate)
