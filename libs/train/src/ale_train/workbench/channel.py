"""The channel from drivers to the run: it stores events, calls observers and removes secrets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ale.registry.hooks import Hooks
from ale.specs.driver import Channel
from ale.store.run_store import RunStore


@dataclass(frozen=True)
class RunChannel(Channel):
    """Passes events and hooks of drivers on to the run. `replace_secrets` is the configuration's; `hooks` and `store`
    are set once they are open."""

    replace_secrets: Callable[[str], str]
    hooks: Hooks | None = None
    store: RunStore | None = None
    show: Callable[[str], None] = lambda text: None
    """It shows a sentence in the progress display."""

    def event(self, kind: str, **data: Any) -> None:
        if self.store is not None:
            self.store.add_event(kind, **data)
        if kind == "note":
            self.show(data["text"])

    def notify(self, hook: str, **arguments: Any) -> None:
        if self.hooks is not None:
            self.hooks.call(hook, **arguments)

    def redact(self, text: str) -> str:
        return self.replace_secrets(text)
