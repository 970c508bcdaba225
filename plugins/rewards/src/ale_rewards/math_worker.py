"""A process that compares mathematical answers with math-verify; `math_reward` starts it and talks to it by lines.

It is a process because math-verify stops long computations by a signal, which only a main thread gets, and because a
computation inside Python's C code (9**9**9**9) can only be stopped with its process. One line of JSON asks
(`right`, `reply`, `timeout_s`); the first line of the answer says whether the right answer can be read, the second how
the comparison ended. This file imports nothing of ALE.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

MEMORY = 4 << 30
"""Bytes of address space: an expression may not use up the machine's memory."""


def main() -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from math_verify import parse, verify  # type: ignore[import-untyped]
    from math_verify.errors import TimeoutException  # type: ignore[import-untyped]

    tell(ready=True)
    for line in sys.stdin:
        asked = json.loads(line)
        seconds = asked["timeout_s"]
        limit_cpu_time(4 * seconds)
        try:
            right = parse(as_math(asked["right"]), parsing_timeout=seconds, raise_on_error=True)
        except (Exception, TimeoutException) as error:
            tell(readable=False, why=f"{type(error).__name__}: {error}")
            continue
        tell(readable=bool(right), why="no mathematics was found in it")
        if not right:
            continue
        said: list[Any] = []
        try:
            said = parse(asked["reply"], parsing_timeout=seconds, raise_on_error=True)
            equal = bool(said) and verify(right, said, timeout_seconds=seconds, raise_on_error=True)
            tell(equal=equal, said=shown(said), why="")
        except (Exception, TimeoutException) as error:
            tell(equal=False, said=shown(said), why=f"{type(error).__name__}: {error}")


def as_math(answer: str) -> str:
    """Return a right answer as math-verify reads it best: between dollar signs, unless it is marked already."""
    return answer if "$" in answer or "\\boxed" in answer else f"${answer}$"


def limit_cpu_time(seconds: int) -> None:
    """Let the system end this process when it has computed that much longer, even if nobody waits for it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most, hard = int(used.ru_utime + used.ru_stime) + seconds + 1, resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def shown(found: list[Any]) -> str:
    """Return the text that was taken for the answer."""
    return str(found[-1])[:200] if found else ""


def tell(**answer: Any) -> None:
    """Write a line of the answer."""
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
