"""The task source `env`: each task is one episode of an environment, with a seed of its own.

A task carries the environment's settings in its metadata, so that the scaffold `env` needs none. Seeds of the split
`train` are even and those of `heldout` odd, so no episode is in both. With `rows`, each episode has data of its own
besides, from a line of a JSONL file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from ale.errors import ConfigError
from ale.messages import Message
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.start import Responder
from ale.specs.tasks import TaskSource
from ale.task import HELDOUT, TRAIN, Task
from ale_env_loop.demonstrator import Demonstrator
from ale_env_loop.environment import EnvironmentSettings, read_episode
from ale_env_loop.environment_pool import EnvironmentPool
from ale_env_loop.scaffold import EnvScaffold

HELDOUT_EVERY = 10
"""Every tenth row is held out if no file of held-out rows is given."""
SEEDS = 1_000_003
"""The number of episodes of a split after which the seeds of the next `tasks.seed` begin."""


class EnvTasksConfig(PluginConfig, EnvironmentSettings):
    """Settings of the task source `env`."""

    episodes: int = Field(1000, gt=0, lt=SEEDS, description="Number of tasks in the split `train`; with rows, at most.")
    heldout_episodes: int = Field(
        128, gt=0, lt=SEEDS, description="Number of tasks in the split `heldout`; with rows, at most."
    )
    seed: int = Field(0, ge=0, le=1000, description="Seed of the episodes' seeds; the run's own does not change them.")
    rows: Path | None = Field(
        None,
        description="JSONL file with an object for each episode, which the environment gets when it is reset; "
        "skyrl-gym needs one (`prompt`, `reward_spec`, ...).",
    )
    heldout_rows: Path | None = Field(
        None, description="Such a file for the split `heldout`; null: every tenth row of `rows` is held out."
    )
    instruction: str = Field("", description="Text before the first observation.")
    system: str | None = Field(None, description="A system message for the model; null: none.")
    timeout_s: float = Field(120.0, gt=0, description="Seconds to import the environment, or for one demonstration.")

    @field_validator("rows", "heldout_rows")
    @classmethod
    def _is_a_file(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError(f"there is no file {value} (looked for in {Path.cwd()})")
        return value


class EnvTasks(Driver, TaskSource):
    """Episodes of an environment with reset and step: a class of yours, gymnasium, gem, skyrl-gym or OpenEnv.

    A subclass may set another default for `Config.env`.
    """

    api_version = ">=1.0,<1.2"
    capabilities = frozenset({"demonstrations"})
    Config = EnvTasksConfig
    config: EnvTasksConfig

    def __init__(self, config: EnvTasksConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self._environments = EnvironmentPool(config.timeout_s, config.timeout_s)
        self._has_expert = False

    @classmethod
    def provides(cls, config: EnvTasksConfig) -> frozenset[str]:
        """Only a class of the user's can have a method `expert`."""
        return cls.capabilities if config.kind == "class" else frozenset()

    @classmethod
    def needs(cls, config: EnvTasksConfig) -> Mapping[str, Collection[str | type]]:
        """Another scaffold would not play the environment, and every episode would end without a reward."""
        return {"scaffold": [EnvScaffold]}

    async def start(self) -> None:
        """Import the environment once, so that a mistake in it is found before the run begins. Raises `ConfigError`."""
        if not self.config.kind.startswith("openenv"):
            async with self._environments.lend(self.config) as process:
                self._has_expert = process.facts["expert"]

    async def close(self) -> None:
        """End the environments of the demonstrators."""
        await self._environments.close()

    def tasks(self, split: str) -> Iterable[Task]:
        if split not in (TRAIN, HELDOUT):
            raise ConfigError(f"The task source 'env' has the splits {TRAIN} and {HELDOUT}, not '{split}'.")
        return self._episodes(split)

    def size(self, split: str) -> int | None:
        most = self.config.episodes if split == TRAIN else self.config.heldout_episodes
        return most if self.config.rows is None else min(most, len(self._rows(split)))

    def demonstrator(self, task: Task, seed: int) -> Responder | None:
        """A demonstrator that answers as the environment's method `expert` does; None if it has none."""
        if not self._has_expert:
            return None
        return Demonstrator(self._environments, read_episode(task), seed, self.config.timeout_s)

    def _episodes(self, split: str) -> Iterator[Task]:
        config = self.config
        most = config.episodes if split == TRAIN else config.heldout_episodes
        shared = config.model_dump(include=set(EnvironmentSettings.model_fields), mode="json")
        word = re.sub(r"\W+", "-", re.split(r"[:/]", config.env.rstrip("/"))[-1]).strip("-")
        rows = [None] * most if config.rows is None else self._rows(split)[:most]
        for i, row in enumerate(rows):
            seed = 2 * (config.seed * SEEDS + i) + (split == HELDOUT)
            yield Task(
                id=f"{word}-{split}-{i}",
                instruction=config.instruction,
                messages=() if config.system is None else (Message("system", config.system),),
                tags=(word,),
                metadata={**shared, "seed": seed, "row": row},
            )

    def _rows(self, split: str) -> list[dict[str, Any]]:
        config = self.config
        assert config.rows is not None
        if config.heldout_rows is not None:
            return read_rows(config.rows if split == TRAIN else config.heldout_rows)
        rows = read_rows(config.rows)
        chosen = [row for i, row in enumerate(rows, 1) if (i % HELDOUT_EVERY == 0) == (split == HELDOUT)]
        if not chosen:
            raise ConfigError(
                f"tasks.rows: {config.rows} has {len(rows)} rows, of which every {HELDOUT_EVERY}th is held out; that "
                f"leaves none for '{split}'. Give tasks.heldout_rows."
            )
        return chosen


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file. Raises `ConfigError`."""
    rows = []
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                rows.append(json.loads(line))
                if not isinstance(rows[-1], dict):
                    raise ValueError(f"line {number} is no JSON object")
    except (OSError, ValueError) as error:
        raise ConfigError(f"tasks.rows: {path} cannot be read: {error}.") from None
    return rows
