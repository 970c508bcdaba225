"""Describes evaluations as lines of text for a terminal, while a run works and after its end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ale.store.run_store import SUMMARY_NAME


def describe_run(folder: Path) -> str:
    """Return the evaluations in a run's summary as text of several lines."""
    evaluations = json.loads((folder / SUMMARY_NAME).read_text())["heldout"]
    lines = [line for label, figures in evaluations.items() for line in describe(label, figures)]
    return "\n".join(["with 95 % intervals over tasks", *(f"  {line}" for line in lines)]) if lines else "no evaluation"


def describe(label: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about an evaluation: `after sft: 0.250 [0.131, 0.422], 64 episodes of 32 tasks`."""
    yield f"{in_words(label)}: {_describe_success(figures)}"
    yield from _describe_rest(figures)
    for name, of in figures.get("sets", {}).items():
        yield f"  {name}: {_describe_success(of)}"
        yield from _describe_rest(of)


def in_words(label: str) -> str:
    """Return a label for people: underscores become spaces, unless it has spaces already."""
    return label if " " in label else label.replace("_", " ")


def _describe_success(figures: Mapping[str, Any]) -> str:
    reward = f", mean reward {with_interval(figures, 'reward')}" if figures.get("reward") != figures["success"] else ""
    return f"{with_interval(figures, 'success')}{reward}, {figures['episodes']} episodes of {figures['tasks']} tasks"


def _describe_rest(figures: Mapping[str, Any]) -> Iterator[str]:
    several = [name for name in figures if re.fullmatch(r"pass[@^]\d+", name)]
    if len(several) > 1:
        yield f"    {', '.join(with_interval(figures, name) for name in several)}"
    tags = [name.partition("/")[2] for name in figures if name.startswith("success/")]
    if len(tags) > 1:
        by_tag = (f"{tag} {with_interval(figures, 'success', tag)}" for tag in tags)
        yield f"    by tag: {', '.join(by_tag)}"
    again, given_up = figures.get("resampled"), figures.get("unfilled")
    if again or given_up:
        lost = f", {given_up:.0f} given up" if given_up else ""
        why = f": {figures['lost']}" if figures.get("lost") else ""
        yield f"    {again or 0:.0f} episode{'' if again == 1 else 's'} made again after faults{lost}{why}"


def with_interval(figures: Mapping[str, Any], name: str, tag: str = "") -> str:
    """Return a figure for people: `0.750 [0.611, 0.852]`; those of several tries have their names before them."""
    of_tag = f"/{tag}" if tag else ""
    mean, low, high = (figures.get(f"{name}{part}{of_tag}") for part in ("", "_low", "_high"))
    value = f"{mean:.3f}" if low is None else f"{mean:.3f} [{low:.3f}, {high:.3f}]"
    return f"{name} {value}" if name.startswith("pass") else value
