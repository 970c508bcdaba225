"""This channel for drivers under test keeps the events that they report."""

from __future__ import annotations

from typing import Any

from ale.specs.driver import Channel


class RecordingChannel(Channel):
    """Keeps the events of a driver, in order, as (kind, data)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, kind: str, **data: Any) -> None:
        """Keep it."""
        self.events.append((kind, data))
