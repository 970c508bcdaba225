"""Run files: YAML -> OmegaConf -> pydantic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale.run_config import RunConfig


@dataclass(frozen=True)
class LoadedConfig:
    """A validated run configuration."""

    run: RunConfig
    resolved: dict[str, Any]

    def to_yaml(self) -> str:
        """The resolved configuration as YAML."""
        from omegaconf import OmegaConf

        return OmegaConf.to_yaml(OmegaConf.create(self.resolved))


def load_run_config(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read, merge, resolve, validate."""
    from omegaconf import OmegaConf

    if not path.is_file():
        raise ConfigError(f"There is no run file {path}.")
    data = OmegaConf.load(path)
    for key in ("tasks", "scaffold", "sandbox", "reward", "engine", "trainer", "algorithm"):
        if isinstance(data.get(key), str):
            data[key] = {"use": data[key]}
    data = OmegaConf.merge(data, OmegaConf.from_dotlist(list(overrides)))
    resolved = OmegaConf.to_container(data, resolve=True)
    assert isinstance(resolved, dict)
    return LoadedConfig(RunConfig.model_validate(resolved), {str(k): v for k, v in resolved.items()})
