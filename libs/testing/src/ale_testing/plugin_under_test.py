"""The suites build their drivers from the plugins under test and their settings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ale.config.capabilities import has
from ale.errors import ConfigError
from ale.registry.drivers import LoadedPlugin, find_plugin, load_driver_class, load_plugin, validate_settings
from ale.registry.installed import PluginInfo
from ale.specs.choice import PluginChoice
from ale.specs.driver import Driver, DriverContext
from ale.task import TRAIN, Task

PLAYED = 4
"""How many tasks of a source the suites take."""


@dataclass
class Subject:
    """Builds drivers of one plugin; `folder` is theirs to write to."""

    kind: str
    name: str
    info: PluginInfo
    cls: type[Driver]
    config: Any
    folder: Path = Path()
    source: LoadedPlugin | None = None
    """The task source of `--ale-tasks`."""
    others: Sequence[Subject] = ()
    """The plugins that are tested besides: the whole episodes of a scaffold are scored by the reward among them."""
    _tasks: list[Task] = field(default_factory=list)

    @property
    def id(self) -> str:
        """What `--ale-plugin` names it."""
        return f"{self.kind}:{self.name}"

    def build(self, run_id: str = "conformance", seed: int = 1) -> Any:
        """A driver that has not started."""
        return self.cls(self.config, self.context(run_id, seed))

    def context(self, run_id: str = "conformance", seed: int = 1) -> DriverContext:
        """The run in which its drivers think that they are."""
        return DriverContext(run_id=run_id, run_dir=self.folder, seed=seed, labels={"run": run_id})

    def can(self, capability: str | type) -> bool:
        """Whether it says that it can, with these settings: a word, or a protocol of its sandboxes."""
        return has(self.cls, self.config, capability)

    @property
    def uses_sandbox(self) -> bool:
        """Whether it is a scaffold or a reward that uses a sandbox with these settings."""
        asked = getattr(self.cls, "uses_sandbox", None)
        return asked is not None and bool(asked(self.config))

    @property
    def transports(self) -> tuple[str, ...]:
        """By which transports an engine or a trainer hands weights over, with these settings."""
        return getattr(self.build(), "transports", ()) if hasattr(self.cls, "transports") else ()

    @property
    def over_http(self) -> bool:
        """Whether it is a scaffold whose agent is a process of its own."""
        return bool(getattr(self.cls, "over_http", False))

    @property
    def needs_installation(self) -> bool:
        """Whether it is one whose agent has to be installed first, so that it cannot run here."""
        return self.over_http and self.build().recipe is not None

    def another(self, kind: str) -> Subject | None:
        """The plugin of that kind that is tested besides."""
        return next((other for other in self.others if other.kind == kind), None)

    async def tasks(self, *instead: Task) -> list[Task]:
        """The first tasks of `--ale-tasks`; without the option, those of the kit that are passed."""
        if self.source is None:
            return list(instead)
        if not self._tasks:
            driver: Any = self.source.cls(self.source.config, self.context())
            async with driver as source:
                self._tasks = list(itertools.islice(source.tasks(TRAIN), PLAYED))
            assert self._tasks, f"the task source of --ale-tasks must have tasks of the split '{TRAIN}'"
        return self._tasks


def find_subjects(plugins: Sequence[str], file: str | None, tasks: str | None) -> list[Subject]:
    """The subjects that the options name. Raises `ConfigError` or `PluginError` with a sentence."""
    plugins = list(dict.fromkeys(plugins))
    settings = {} if file is None else read_mapping("--ale-config", Path(file), "the plugin's settings")
    by_plugin: dict[str, Any] = settings if len(plugins) > 1 else {plugin: settings for plugin in plugins}
    for name, own in by_plugin.items():
        if name not in plugins or not isinstance(own, dict):
            raise ConfigError(
                f"--ale-config {file}: with several plugins it must hold the settings of each under its name, as keys "
                f"and values, such as '{plugins[0]}: {{...}}'; it has '{name}: {own!r:.40}'."
            )
    source = None if tasks is None else load_plugin("tasks", read_task_source(tasks), "--ale-tasks")
    found = [find_subject(plugin, by_plugin.get(plugin, {}), source) for plugin in plugins]
    for subject in found:
        subject.others = [other for other in found if other is not subject]
    return found


def find_subject(plugin: str, settings: Mapping[str, Any], source: LoadedPlugin | None) -> Subject:
    """One subject. Raises `ConfigError` or `PluginError` with a sentence."""
    kind, colon, name = plugin.partition(":")
    if not (kind and colon and name):
        raise ConfigError(f"--ale-plugin takes KIND:NAME, such as sandbox:docker, not '{plugin}'.")
    cls = load_driver_class(kind, name, kind)
    info = find_plugin(kind, name)
    return Subject(kind, name, info, cls, validate_settings(cls, settings, kind), source=source)


def read_task_source(text: str) -> PluginChoice:
    """The task source that `--ale-tasks` names: a name, YAML of a section `tasks`, or a file with one of the two, such
    as a run file. Raises `ConfigError`."""
    from ale.config.yaml_text import parse_yaml

    section: Any
    if text.endswith((".yaml", ".yml")):
        section = read_mapping("--ale-tasks", Path(text), "a section 'tasks'")
        section = section.get("tasks", section)
    else:
        # A plain name with a colon in it (package:name) is no mapping.
        section = parse_yaml(text, "--ale-tasks") if text.lstrip().startswith("{") else text
    if not isinstance(section, str) and not (isinstance(section, dict) and isinstance(section.get("use"), str)):
        raise ConfigError(
            f"--ale-tasks takes the name of a task source, a section such as '{{use: bash, seed: 3}}', or a run file "
            f"with one task source, not {section!r:.80}."
        )
    if isinstance(section, str):
        return PluginChoice(use=section)
    return PluginChoice(use=section["use"], settings={key: value for key, value in section.items() if key != "use"})


def read_mapping(option: str, file: Path, what: str) -> dict[str, Any]:
    """The YAML mapping in a file. Raises `ConfigError` with a sentence that names the option."""
    from ale.config.yaml_text import parse_yaml

    try:
        found = parse_yaml(file.read_text(encoding="utf-8"), str(file)) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {file} cannot be read: {error}.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{option} {file} must hold {what} as keys and values.")
    return found
