"""The suites build their drivers from the plugin under test and its settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.config.preflight import has
from ale.errors import ConfigError
from ale.registry.drivers import find_plugin, load_driver_class, validate_settings
from ale.registry.installed import PluginInfo
from ale.specs.driver import Driver, DriverContext


@dataclass
class Subject:
    """Builds drivers of one plugin; `folder` is theirs to write to."""

    kind: str
    name: str
    info: PluginInfo
    cls: type[Driver]
    config: Any
    folder: Path

    def build(self, run_id: str = "conformance", seed: int = 1) -> Any:
        """A driver that has not started."""
        context = DriverContext(run_id=run_id, run_dir=self.folder, seed=seed, labels={"run": run_id})
        return self.cls(self.config, context)

    def can(self, capability: str | type) -> bool:
        """Whether it says that it can, with these settings: a word, or a protocol of its sandboxes."""
        return has(self.cls, self.config, capability)

    @property
    def transports(self) -> tuple[str, ...]:
        """By which transports an engine or a trainer hands weights over."""
        return getattr(self.cls, "transports", ())

    @property
    def over_http(self) -> bool:
        """Whether it is a scaffold whose agent is a process of its own."""
        return bool(getattr(self.cls, "over_http", False))

    @property
    def needs_installation(self) -> bool:
        """Whether it is one whose agent has to be installed first, so that it cannot run here."""
        return self.over_http and self.build().recipe is not None


def find_subject(plugin: str, file: str | None) -> Subject:
    """The subject that the options name. Raises `ConfigError` or `PluginError` with a sentence."""
    from ale.config.yaml_text import parse_yaml

    kind, colon, name = plugin.partition(":")
    if not (kind and colon and name):
        raise ConfigError(f"--ale-plugin takes KIND:NAME, such as sandbox:docker, not '{plugin}'.")
    settings: Any = {}
    if file is not None:
        try:
            settings = parse_yaml(Path(file).read_text(encoding="utf-8"), file) or {}
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--ale-config {file} cannot be read: {error}.") from None
        if not isinstance(settings, dict):
            raise ConfigError(f"--ale-config {file} must hold the plugin's settings as keys and values.")
    cls = load_driver_class(kind, name, kind)
    info = find_plugin(kind, name)
    return Subject(kind, name, info, cls, validate_settings(cls, settings, kind), Path())
