"""Finds sentences of a template in a package that is published: its README then describes another plugin.

What to look for is what the templates themselves say (`plugin_templates.py`), so that it follows every change there. A
package that must not be published yet, by the classifier that the template begins with, is left alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from email import message_from_string
from email.message import Message
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from ale_testing.plugin_templates import ABOUT

UNPUBLISHED = "Private :: Do Not Upload"
TODO = re.compile(r"\bTODO\b")


@dataclass(frozen=True)
class Leftover:
    """A sentence of a template, and where it stands."""

    where: str
    line: int
    text: str

    def __str__(self) -> str:
        place = f"{self.where}, line {self.line}," if self.line else f"{self.where}"
        return f"{place} still has a sentence of the template: {self.text!r}; write what this plugin is and does"


def template_sentences() -> list[str]:
    """The sentences that each template says about its own small plugin."""
    return [sentence for about in ABOUT.values() for sentence in (about.summary, about.limits)]


def find_in_text(where: str, text: str) -> list[Leftover]:
    """The leftovers in a text, with the numbers of their lines."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.strip().casefold()
        left = [sentence for sentence in template_sentences() if _is_in(sentence, plain)]
        if left or TODO.search(line):
            found.append(Leftover(where, number, left[0] if left else line.strip()))
    return found


def _is_in(sentence: str, line: str) -> bool:
    """Whether the sentence stands in the line, not as the beginning of longer words."""
    return re.search(rf"(?<!\w){re.escape(sentence.rstrip('.').casefold())}(?!\w)", line) is not None


def find_leftovers(package: str, summaries: dict[str, str]) -> list[Leftover]:
    """The leftovers in an installed package's README, its own summary and those of its plugins, which `summaries` gives
    by plugin; none if it is marked as not to be published."""
    found = metadata.distribution(package)
    about = message_from_string(found.read_text("METADATA") or "")
    if UNPUBLISHED in (about.get_all("Classifier") or ()):
        return []
    where, text = readme_of(found, about)
    whole = about.get("Summary") or ""
    texts = {"the package's summary (description in pyproject.toml)": whole}
    texts |= {f"the summary of {plugin}": summary for plugin, summary in summaries.items() if summary != whole}
    left = find_in_text(where, text)
    return left + [Leftover(place, 0, one.text) for place, text in texts.items() for one in find_in_text(place, text)]


def readme_of(distribution: metadata.Distribution, about: Message) -> tuple[str, str]:
    """Where a package's README is, and its text: the file itself of a package that is installed from its folder, since
    what was installed may be older, or else the description that package indexes show."""
    url = json.loads(distribution.read_text("direct_url.json") or "{}")
    if url.get("dir_info", {}).get("editable"):
        file = Path(unquote(urlparse(url["url"]).path)) / "README.md"
        if file.is_file():
            return str(file), file.read_text(encoding="utf-8", errors="replace")
    return f"the README of {distribution.name}", str(about.get_payload() or about.get("Description") or "")
