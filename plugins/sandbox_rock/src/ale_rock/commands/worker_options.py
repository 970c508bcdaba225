"""What a worker offers to a service, by the options of `ale rock serve` and `ale rock worker`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.config.yaml_text import parse_yaml
from ale.errors import ConfigError

FOLDERS = ["/data/logs/user-defined", "/root", "/testbed"]
"""Folders that ROCK's client writes to, whatever the image is. In `local` sandboxes, which have no image, they are
empty folders of each sandbox."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Sandboxes of one provider, and how much of a machine they may use; null: all of it."""

    sandbox: str
    """The provider's name."""
    settings_file: Path | None
    """Its settings, in YAML."""
    warm: tuple[str, ...] = ()
    cpus: float | None = None
    memory: str | None = None
    """A size such as 16g."""
    gpus: int | None = None

    def arguments(self) -> list[str]:
        """Return the same as arguments of `ale rock worker`."""
        given = {"settings": self.settings_file, "cpus": self.cpus, "memory": self.memory, "gpus": self.gpus}
        named = [f"--{name}={value}" for name, value in given.items() if value is not None]
        return [f"--sandbox={self.sandbox}", *named, *(f"--warm={each}" for each in self.warm)]

    def read(self) -> dict[str, Any]:
        """Return the settings of a worker (`WorkerSettings`) that offers this. Raises `ConfigError`."""
        from ale_rock.schemas.common import size_bytes
        from ale_rock.worker.warm_sandboxes import read_counts

        try:
            memory_bytes = None if self.memory is None else size_bytes(self.memory)
        except ValueError as error:
            raise ConfigError(f"The memory of the worker: {error}.") from None
        room = {"cpus": self.cpus, "memory_bytes": memory_bytes, "gpus": self.gpus}
        return {"provider_name": self.sandbox, "warm": read_counts(list(self.warm)), **room}

    def read_provider_settings(self) -> dict[str, Any]:
        """Return the settings of the provider. Raises `ConfigError`."""
        found = read_yaml(self.settings_file, "--settings") if self.settings_file is not None else {}
        if not isinstance(found, dict):
            raise ConfigError(
                f"--settings {self.settings_file} must hold settings of the sandbox provider '{self.sandbox}'."
            )
        return {"folders": FOLDERS, **found} if self.sandbox == "local" else found


def ray_address(cluster: str | None, address: str | None) -> str | None:
    """Return the address of the Ray whose nodes get workers; None if only this machine gets one. Raises
    `ConfigError`."""
    if cluster is None:
        if address is not None:
            raise ConfigError(f"--address {address} is the address of a Ray: say --cluster ray too.")
        return None
    if cluster != "ray":
        raise ConfigError(f"--cluster {cluster}: there is only ray.")
    from ale_rock.ray_cluster.nodes import check_installed

    check_installed()
    return address or "auto"


def read_yaml(file: Path, option: str) -> Any:
    """Return the YAML in a file. Raises `ConfigError`."""
    try:
        return parse_yaml(file.read_text(encoding="utf-8"), f"{option} {file}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
