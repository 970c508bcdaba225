"""A family of tasks: a function that makes instances of it, and one that demonstrates how an instance is solved.

A demonstration is a generator: it yields tool calls and is sent what the sandbox really answered. It knows the
instruction, not the answer. Some demonstrations take a `WrongTurn`: a call that fails and is recovered from, a call
that was not needed, or a mistake that spoils the task without being noticed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal

WrongTurn = Literal["none", "error", "detour", "mistake"]
Facts = dict[str, str]


@dataclass(frozen=True)
class DemonstratorCall:
    """A tool call of a demonstrator."""

    name: str
    arguments: dict[str, Any]


Demonstration = Generator[DemonstratorCall, str, None]


@dataclass(frozen=True)
class Instance:
    """A task without its id. `facts` holds what the demonstrator may read in the instruction, never the
    answer."""

    instruction: str
    files: dict[str, str]
    test: str
    solution: str
    facts: Facts


@dataclass(frozen=True)
class Family:
    """A name, a maker of instances, a demonstrator."""

    name: str
    make_instance: Callable[[random.Random], Instance]
    demonstrate: Callable[[Facts, random.Random, WrongTurn], Demonstration]


@dataclass(frozen=True)
class LongFamily:
    """A family whose tasks have several crucial forks; its demonstration goes wrong at each with a given rate."""

    name: str
    make_instance: Callable[[random.Random], Instance]
    demonstrate: Callable[[Facts, random.Random, float], Demonstration]


_LEXICON = (
    "amber apple arrow basil beach bell brick camel cedar cliff cloud crane dove drum eagle fern frost glass grape "
    "honey ivory jade kite lemon lily lion maple mint moon olive otter pearl plum rain river rose sage snow storm wolf"
)
WORDS = tuple(_LEXICON.split())
OUTPUTS = ("out.txt", "ans.txt", "res.txt")


def shell_call(command: str) -> DemonstratorCall:
    """A shell call."""
    return DemonstratorCall("shell", {"command": command})


def write_call(rng: random.Random, text: str, path: str) -> DemonstratorCall:
    """A call that writes a short text, by one of two tools."""
    if rng.random() < 0.3:
        return DemonstratorCall("write_file", {"path": path, "content": text})
    return shell_call(f"echo {text} > {path}")


def read_call(rng: random.Random, path: str) -> DemonstratorCall:
    """A call that reads a file, by one of two tools."""
    if rng.random() < 0.3:
        return DemonstratorCall("read_file", {"path": path})
    return shell_call(f"cat {path}")


def draw_words(rng: random.Random, n: int) -> list[str]:
    """`n` different words."""
    return rng.sample(WORDS, n)


def draw_output_name(rng: random.Random) -> str:
    """A name for the file that the answer goes to."""
    return rng.choice(OUTPUTS)


def content_test(path: str, text: str) -> str:
    """A test command that passes if the file holds exactly this text, apart from white space."""
    return f'[ "$(set -f; echo $(cat {path}))" = "{text}" ]'
