"""Reads what a plugin's class says about itself in the text of its module; nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HOPS = 3
"""How many modules that import the class from one another are followed."""


@dataclass(frozen=True, slots=True)
class ClassText:
    """The first sentence of a class's docstring, and its `api_version`; empty where there is none."""

    summary: str = ""
    api_version: str = ""


def read_class(places: Sequence[str], target: str) -> ClassText:
    """Return what the class of an entry point (`package.module:Class`) says; `places` are the folders of the package's
    top module. What cannot be read is left empty."""
    dotted, _, name = target.partition("[")[0].replace(" ", "").partition(":")
    for _ in range(HOPS):
        text = _read_module(places, dotted)
        found = re.search(rf"^class {re.escape(name)}\b.*?(?=^[^\s#)]|\Z)", text, re.MULTILINE | re.DOTALL)
        if found is not None:
            return _describe(found[0])
        imports = re.findall(r"^from (\S+) import (\([^)]*\)|.*)", text, re.MULTILINE)
        source = next((module for module, names in imports if re.search(rf"\b{re.escape(name)}\b", names)), "")
        if source.partition(".")[0] != dotted.partition(".")[0]:
            break
        dotted = source
    return ClassText()


def _read_module(places: Sequence[str], dotted: str) -> str:
    parts = dotted.split(".")[1:]
    for place in places:
        for path in (Path(place, *parts).with_suffix(".py") if parts else None, Path(place, *parts, "__init__.py")):
            if path is not None and path.is_file():
                try:
                    return path.read_text(encoding="utf-8")
                except (OSError, ValueError):
                    return ""
    return ""


def _describe(text: str) -> ClassText:
    docstring = re.match(r'class [^"\']*?:\s*\n\s+[rR]?("""|\'\'\')(.*?)\1', text, re.DOTALL)
    version = re.search(r"^    api_version\b[^=\n]*=\s*([\"'])(.*?)\1", text, re.MULTILINE)
    return ClassText(first_sentence(docstring[2]) if docstring else "", version[2] if version else "")


def first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring on one line."""
    text = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[^.][.!?])\s(?=[A-Z0-9`])", text)[0]
