"""What is said of a run before reinforcement learning starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ale.config.run import RolloutConfig
from ale_rl.checks import note_short_context


@pytest.mark.parametrize(
    ("settings", "most", "said"),
    [({"max_context": 16384}, 2048, True), ({"max_context": 2048}, 2048, False), ({}, 16, False)],
)
def test_contexts_that_the_engine_ends_earlier_are_no_secret(settings: dict[str, Any], most: int, said: bool) -> None:
    notes: list[str] = []
    bench: Any = SimpleNamespace(
        config=SimpleNamespace(rollout=RolloutConfig(**settings)),
        engine=SimpleNamespace(max_context=most),
        progress=SimpleNamespace(note=notes.append),
    )
    note_short_context(bench)
    assert bool(notes) == said
    assert all("rollout.max_context is 16384, but the engine takes contexts of 2048 tokens" in note for note in notes)
