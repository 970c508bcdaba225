"""What the rewards of a run miss in its tasks, such as a column, before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ale.config.episode import EpisodeConfig
from ale.errors import ConfigError
from ale.registry.drivers import load_plugin
from ale.registry.validation import as_plugin_error
from ale.rollout.selection import carries
from ale.specs.choice import PluginChoice
from ale.specs.reward import Reward
from ale.task import Task


@dataclass
class TaskObjections:
    """It asks each reward about the tasks that it would score. A column that only some tasks lack is the fault of those
    tasks; one that none has is a mistake in the run file."""

    config: EpisodeConfig
    _first: dict[str, str] = field(default_factory=dict)
    """By the reward's path, what it objected to in the first task, until a task has everything."""
    _content: set[str] = field(default_factory=set)

    def look_at(self, task: Task) -> None:
        """Ask the rewards that would score a task."""
        for path, choice in self._rewards_of(task):
            if path in self._content:
                continue
            plugin = load_plugin("reward", choice, path)
            assert issubclass(plugin.cls, Reward), "the registry checks it"
            with as_plugin_error(f"{path}: the reward's objection() crashed"):
                sentence = plugin.cls.objection(plugin.config, task)
            if sentence:
                self._first.setdefault(path, sentence)
            else:
                self._content.add(path)

    def refuse(self) -> None:
        """Raise `ConfigError` with a line for each reward that objected to every task."""
        lines = [sentence for path, sentence in self._first.items() if path not in self._content]
        if lines:
            raise ConfigError("\n".join(dict.fromkeys(lines)))

    def _rewards_of(self, task: Task) -> Iterator[tuple[str, PluginChoice]]:
        """Yield the rewards that may score a task: of the rules that fit, the first and those that share with it."""
        section = self.config.reward
        if isinstance(section, PluginChoice):
            yield "reward", section
            return
        when = next((set(rule.when) for rule in section.rules if carries(task.tags, rule.when)), None)
        yield from ((f"reward.select.{i}", rule) for i, rule in enumerate(section.rules) if set(rule.when) == when)
