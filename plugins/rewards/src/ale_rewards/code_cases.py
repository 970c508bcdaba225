"""The test cases of a programming task, in the forms that data sets have, and the program in a reply.

- A text, or a list of texts: Python that is run after the program in the same file; it must not raise.
- A list of `{"input": ..., "output": ...}`, or `{"inputs": [...], "outputs": [...]}`: what the program must print when
  it reads that.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Case:
    """One case: Python to run after the program, or an input and the output that is expected."""

    after: str | None = None
    given: str = ""
    expected: str = ""


def read_cases(value: Any) -> list[Case]:
    """Return the cases of a column. Raises `ValueError` with the end of a sentence."""
    if isinstance(value, str):
        value = _from_json(value)
    if isinstance(value, str):
        value = [value]
    if isinstance(value, dict) and {"inputs", "outputs"} <= set(value):
        inputs, outputs = value["inputs"], value["outputs"]
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise ValueError("'inputs' and 'outputs' must be lists of the same length")
        value = [{"input": given, "output": expected} for given, expected in zip(inputs, outputs, strict=True)]
    if not isinstance(value, list) or not value:
        raise ValueError(
            "it must be Python code, a list of it, a list of {input, output}, or an object {inputs, outputs}"
        )
    return [_read_case(item) for item in value]


def _from_json(text: str) -> Any:
    """Return the cases that some data sets hold as JSON in a text; any other text is code."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, list | dict) else text


def _read_case(item: Any) -> Case:
    if isinstance(item, str):
        return Case(after=item)
    if isinstance(item, dict) and {"input", "output"} <= set(item):
        return Case(given=_as_lines(item["input"]), expected=_as_lines(item["output"]))
    raise ValueError(f"a case must be Python code or have 'input' and 'output', not {item!r:.100}")


def _as_lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def last_program(reply: str) -> str | None:
    """Return the last fenced code block of a reply, None if it has none."""
    blocks = FENCE.findall(reply)
    return str(blocks[-1]) if blocks else None


def same_output(printed: str, expected: str) -> bool:
    """Return whether two outputs are the same but for white space at the ends of lines and of the whole."""
    first, second = ([line.rstrip() for line in text.strip().splitlines()] for text in (printed, expected))
    return first == second
