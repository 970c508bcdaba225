"""What is said of a run before reinforcement learning starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ale.config.episode import RolloutConfig
from ale.errors import ConfigError
from ale.registry.drivers import LoadedPlugin
from ale.specs.choice import PluginChoice
from ale.specs.driver import Driver, PluginConfig
from ale_train.config.rl import RLConfig
from ale_train.rl.checks import check_multiplex, note_short_context
from ale_train.rl.device_sharing import require_elastic


class TwoLent(PluginConfig):
    """Settings of a cluster with room for two engines on the trainer's devices."""

    def objection_to_lending(self, count: int) -> str:
        return f"cluster.engine.replicas is 2, not {count}." if count > 2 else ""


def run_on(settings: PluginConfig | None) -> Any:
    """A run on a cluster with these settings; None: without one."""
    choice = PluginChoice(use="far")
    choice._loaded = LoadedPlugin(Driver, settings)
    return SimpleNamespace(cluster=None if settings is None else choice)


def test_engines_for_which_the_cluster_has_no_room_beside_the_trainer_are_refused() -> None:
    check_multiplex(run_on(TwoLent()), RLConfig(multiplex=2))
    with pytest.raises(ConfigError, match=r"^cluster\.engine\.replicas is 2, not 3\.$"):
        check_multiplex(run_on(TwoLent()), RLConfig(multiplex=3))


@pytest.mark.parametrize("settings", [None, PluginConfig()])
def test_without_settings_that_say_how_many_engines_can_be_lent_the_engine_will(settings: PluginConfig | None) -> None:
    check_multiplex(run_on(settings), RLConfig(multiplex=3))


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


def test_engines_that_cannot_be_lent_are_refused() -> None:
    alone: Any = SimpleNamespace()
    with pytest.raises(ConfigError, match=r"rl\.multiplex is 1, but of engines that can sleep .* the run has none: "):
        require_elastic(alone, 1)
    engines: Any = SimpleNamespace(replica_statuses=lambda: [1], shrink=print, expand=print)
    with pytest.raises(ConfigError, match=r"rl\.multiplex is 2, but .* the run has 1: take a cluster with as many"):
        require_elastic(engines, 2)
    assert require_elastic(engines, 1) is engines
    engines.objection_to_lending = lambda count: "They keep their memory."
    with pytest.raises(ConfigError, match=r"^They keep their memory\.$"):
        require_elastic(engines, 1)
