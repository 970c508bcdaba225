"""The values of an episode that its agent needs, and how they are put into its command and files.

The names are `$ALE_TASK`, `$ALE_BASE_URL`, `$ALE_API_KEY`, `$ALE_MODEL`, `$ALE_MAX_CONTEXT` and `$ALE_MAX_TOKENS` (or
`${ALE_TASK}`). They are environment variables of the agent's process, so a shell reads them itself and no text of a
task is ever read as a command; in files and in words of a command that no shell reads, `fill` puts the values in their
place."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

Dialect = Literal["chat", "responses", "anthropic"]
MODEL = "policy"
_NAME = re.compile(r"\$(?:\{(ALE_[A-Z_]+)\}|(ALE_[A-Z_]+))")
_QUOTED = (".json", ".jsonc", ".toml", ".yaml", ".yml")
"""Files in which values are put between double quotes, with JSON's escapes."""


@dataclass(frozen=True, slots=True)
class AgentVariables:
    """The values that one episode's agent gets: task, base URL, key, model, and how much the model takes."""

    task: str
    base_url: str
    """The base URL as the agent's API expects it: with `/v1` for OpenAI's APIs, without for Anthropic's."""
    api_key: str
    model: str = MODEL
    max_context: int | None = None
    """The most tokens of a conversation with its answer; None: unknown, and `$ALE_MAX_CONTEXT` is not set."""
    max_tokens: int | None = None
    """The most tokens of one answer; None: unknown, and `$ALE_MAX_TOKENS` is not set."""

    @property
    def variables(self) -> dict[str, str]:
        """Return the values by name."""
        limits = {"ALE_MAX_CONTEXT": self.max_context, "ALE_MAX_TOKENS": self.max_tokens}
        return {
            "ALE_TASK": self.task,
            "ALE_BASE_URL": self.base_url,
            "ALE_API_KEY": self.api_key,
            "ALE_MODEL": self.model,
            **{name: str(limit) for name, limit in limits.items() if limit is not None},
        }

    def fill(self, text: str, escape: Callable[[str], str] = str) -> str:
        """The text with the values in the place of their names; other `$NAMES` stay as they are."""
        values = self.variables

        def value(match: re.Match[str]) -> str:
            found = values.get(match[1] or match[2])
            return match[0] if found is None else escape(found)

        return _NAME.sub(value, text)

    def fill_file(self, path: str, text: str) -> str:
        """As `fill`, with values escaped as files of this ending ask for: in JSON, TOML and YAML, put names in double
        quotes."""
        return self.fill(text, _json_text if PurePosixPath(path).suffix in _QUOTED else str)

    def command(self, words: str | Sequence[str]) -> str:
        """Return a shell command: a text unchanged, or words filled and quoted."""
        return words if isinstance(words, str) else shlex.join(self.fill(word) for word in words)


def base_url(origin: str, dialect: Dialect) -> str:
    """Return the base URL that clients of an API expect."""
    return origin if dialect == "anthropic" else f"{origin}/v1"


def _json_text(value: str) -> str:
    return json.dumps(value)[1:-1]
