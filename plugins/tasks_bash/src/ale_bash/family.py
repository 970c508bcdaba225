"""What a family of tasks is: a maker of instances, and somebody who shows how one is done.

A demonstrator is a generator: it yields tool calls and is sent what the sandbox really answered. It knows the
instruction, not the answer. Some of its demonstrations take a wrong turn (`Turn`): one that fails and is recovered
from, one that was not needed, or one that spoils the task without being noticed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal

Turn = Literal["none", "error", "detour", "mistake"]
Facts = dict[str, str]


@dataclass(frozen=True)
class Call:
    """A tool call of a demonstrator."""

    name: str
    arguments: dict[str, Any]


Demonstration = Generator[Call, str, None]


@dataclass(frozen=True)
class Instance:
    """One task before it has an id. `facts` is what the demonstrator reads off the instruction, never the answer."""

    instruction: str
    files: dict[str, str]
    test: str
    solution: str
    facts: Facts


@dataclass(frozen=True)
class Family:
    """A name, a maker of instances, a demonstrator."""

    name: str
    make: Callable[[random.Random], Instance]
    show: Callable[[Facts, random.Random, Turn], Demonstration]


@dataclass(frozen=True)
class LongFamily:
    """A family whose tasks have forks on the way; its demonstrator goes wrong at each with the rate it is given."""

    name: str
    make: Callable[[random.Random], Instance]
    show: Callable[[Facts, random.Random, float], Demonstration]


_LEXICON = (
    "amber apple arrow basil beach bell brick camel cedar cliff cloud crane dove drum eagle fern frost glass grape "
    "honey ivory jade kite lemon lily lion maple mint moon olive otter pearl plum rain river rose sage snow storm wolf"
)
WORDS = tuple(_LEXICON.split())
OUTPUTS = ("out.txt", "ans.txt", "res.txt")


def shell(command: str) -> Call:
    """A shell call."""
    return Call("shell", {"command": command})


def put(rng: random.Random, text: str, path: str) -> Call:
    """Write a short text, in one of the ways there are."""
    if rng.random() < 0.3:
        return Call("write_file", {"path": path, "content": text})
    return shell(f"echo {text} > {path}")


def look(rng: random.Random, path: str) -> Call:
    """Look at a file, in one of the ways there are."""
    if rng.random() < 0.3:
        return Call("read_file", {"path": path})
    return shell(f"cat {path}")


def words(rng: random.Random, n: int) -> list[str]:
    """`n` different words."""
    return rng.sample(WORDS, n)


def output(rng: random.Random) -> str:
    """A name for the file that the answer goes to."""
    return rng.choice(OUTPUTS)


def holds(path: str, text: str) -> str:
    """A test: the file holds just this text, whatever the blanks around it."""
    return f'[ "$(set -f; echo $(cat {path}))" = "{text}" ]'
