"""Plays one episode as the environment's own expert, which may look at what the model cannot see."""

from __future__ import annotations

import random
import re
from typing import Any

from .adapters import Adapter


def play_expert(adapter: Adapter, request: dict[str, Any]) -> dict[str, Any]:
    """Return the expert's `answers`, and after each of them what was `shown` (a list of messages), for at most
    `most` steps."""
    if not adapter.has_expert:
        raise ValueError("the environment has no method expert(rng)")
    rng = random.Random(request["rng_seed"])
    adapter.reset(request["seed"], request["row"])
    answers: list[str] = []
    shown: list[Any] = []
    while len(answers) < request["most"]:
        answers.append(adapter.expert(rng))
        step = adapter.step(find_action(answers[-1], request["pattern"]))
        shown.append(step["messages"])
        if step["terminated"] or step["truncated"]:
            break
    return {"answers": answers, "shown": shown}


def find_action(text: str, pattern: str | None) -> str:
    """Return the action in an answer: what the last match's group holds, or the whole answer without a pattern."""
    if pattern is None:
        return text
    found = [match for match in re.finditer(pattern, text, re.DOTALL)]
    if not found:
        raise ValueError(f"the expert's answer {text!r:.100} has no action that matches {pattern!r}")
    return str(found[-1].group(found[-1].lastindex or 0))
