"""Finds what the docs and the sentences of the code tell a reader to install: each `pip install ...`, with its place.

In Python files only strings and docstrings count, put together as Python puts them together. In other files a line that
ends with a backslash goes on with the next one.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from declared_packages import ROOT, Package, our_packages
from packaging.requirements import InvalidRequirement, Requirement

INSTALL = re.compile(r"\bpip\s+install\s+([^`;|&#\n]*)")
WITH_VALUE = {"--find-links", "--index-url", "--extra-index-url", "--python", "-f", "-r", "-c", "--target"}
NAMES = re.compile(r"(?<![\w./-])ale-[a-z][a-z0-9-]*[a-z0-9](?![\w/.-]*\.(?:json|md|py))")
REQUIRED = re.compile(r"(?<![\w./-])(ale-plugin-[a-z][a-z0-9-]*[a-z0-9]|ale-[a-z][a-z0-9-]*[a-z0-9](?=[<>=~\[]))")
"""Names of packages in source code, where much else begins with `ale-`: those of plugins, and all with a version or an
extra."""


@dataclass(frozen=True)
class InstallLine:
    """What is behind one `pip install`, without pip's options."""

    place: str
    arguments: tuple[str, ...]


def documents() -> list[Path]:
    """Return the files that people read: README files, the docs, the examples."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *(p.folder / "README.md" for p in our_packages().values())]
    found += [path for path in ROOT.glob("examples/**/*") if path.suffix in (".md", ".yaml", ".py", ".sh")]
    return sorted(path for path in found if path.is_file())


def sources() -> list[Path]:
    """Return the files of all packages whose sentences a user may see."""
    folders = [package.folder / "src" for package in our_packages().values()]
    return sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".yaml", ".jinja"))


@cache
def texts(path: Path) -> tuple[str, ...]:
    """Return a file's texts: a Python file's strings, or the whole of another file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return (re.sub(r"\\\n\s*", " ", text),)
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            found.append("".join(parts))
    return tuple(found)


def install_lines(paths: list[Path]) -> Iterator[InstallLine]:
    """Yield each `pip install` of these files."""
    for path in paths:
        for text in texts(path):
            for match in INSTALL.finditer(text):
                yield InstallLine(str(path.relative_to(ROOT)), tuple(arguments_of(match[1])))


def arguments_of(text: str) -> Iterator[str]:
    """Yield what is to be installed: words up to the first that is no requirement and no path."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # an apostrophe of the sentence that goes on
        words = text.split()
    skip = False
    for word in words:
        if skip or word.startswith("-"):
            skip = not skip and word in WITH_VALUE
            continue
        bare = word.rstrip(".,:)'\"")
        if not (bare.startswith((".", "/")) or _is_requirement(bare)):
            return
        yield bare
        if bare != word:  # the sentence's own full stop or comma
            return


def _is_requirement(word: str) -> bool:
    try:
        Requirement(word)
    except InvalidRequirement:
        return False
    return True


def mistake_in(argument: str) -> str | None:
    """Return what is wrong with something to install, if it is ours: its name, an extra, or a folder."""
    if argument.startswith("./"):
        folder, _, rest = argument.partition("[")
        package = next((p for p in our_packages().values() if p.folder == ROOT / folder), None)
        return _wrong_extras(package, set(rest.rstrip("]").split(",")) - {""}) if package else f"there is no {folder}"
    if argument.startswith((".", "/")):
        return None
    requirement = Requirement(argument)
    package = our_packages().get(requirement.name)
    if package is None:
        return f"there is no package {requirement.name}" if requirement.name.startswith("ale-") else None
    return _wrong_extras(package, requirement.extras)


def _wrong_extras(package: Package, extras: set[str]) -> str | None:
    wrong = sorted(extras - set(package.extras))
    return f"{package.name} has no extra {', '.join(wrong)}" if wrong else None
