"""The checks that plugins fit together, so that a run that cannot work is refused before anything starts.

1. `Requirements` collects once what is needed, from the plugins themselves (`Driver.needs`), from the keys
   `needs.network` and `needs.capabilities`, and from what the episodes are for (a warm start wants demonstrations).
2. `Requirements.refuse_lacking` checks that the plugins have it: a capability is a word of `Driver.provides` with the
   plugin's settings, or a protocol of its class of sandboxes. Each need that is not met makes one sentence: what is
   needed, who needs it, which plugin lacks it, and which installed plugin has it.
3. `Requirements.check_started` checks, once a driver has started, that it can also do so on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ale.config.episode import EpisodeConfig
from ale.errors import AleError, PluginError
from ale.registry.drivers import load_driver_class, load_plugin
from ale.registry.installed import list_plugins
from ale.registry.validation import as_plugin_error
from ale.specs.choice import Mix, PluginChoice
from ale.specs.driver import Driver
from ale.specs.engine import MessageEngine
from ale.specs.kinds import CAPABILITIES, plugin_noun
from ale.specs.reward import Reward
from ale.specs.sandbox import NetworkMode, SandboxProvider
from ale.specs.sandbox_protocols import Resets, meaning
from ale.specs.scaffold import Scaffold

NETWORKS: dict[NetworkMode, str] = {
    "none": "network_none",
    "endpoint-only": "network_endpoint",
    "allow": "egress_policy",
    "full": "network_full",
}
"""The capability that a sandbox needs for a network policy."""


@dataclass(frozen=True)
class Need:
    """`who` needs every plugin of `kind` to have `capability`: a word, or a protocol of its sandboxes."""

    who: str
    kind: str
    capability: str | type

    @property
    def name(self) -> str:
        """The word, or the protocol's name."""
        return self.capability if isinstance(self.capability, str) else self.capability.__name__


@dataclass(frozen=True)
class Part:
    """A plugin of the run with its settings."""

    path: str
    kind: str
    use: str
    cls: type[Driver]
    config: Any

    def __str__(self) -> str:
        return f"the {plugin_noun(self.kind)} '{self.use}'"


class Requirements:
    """The plugins that a configuration names, loaded, and what is needed of them. Raises `PluginError`, `ConfigError`
    if a plugin cannot be loaded or cannot say what it needs."""

    def __init__(self, config: EpisodeConfig, more: Iterable[Need] = ()) -> None:
        """`more` is needed beyond what the configuration of an episode needs."""
        self.config = config
        self.parts = [_load_part(*place) for place in config.plugins()]
        of_the_file = [*_needs_of_the_file(config), *more]
        of_plugins = [(part.path, need) for part in self.parts for need in _needs_of(part)]
        self.needs: list[tuple[str, Need]] = [*(("", need) for need in of_the_file), *of_plugins]
        """Each with the path of the plugin that needs it; empty for the run file's own."""

    @property
    def sandbox_users(self) -> list[Part]:
        """The scaffolds and rewards that use a sandbox; without any, no episode starts one."""
        return [p for p in self.parts if issubclass(p.cls, Scaffold | Reward) and p.cls.uses_sandbox(p.config)]

    def refuse_lacking(self, more: Iterable[str] = ()) -> None:
        """Refuse plugins that lack what is needed; `more` are sentences that join them. Raises `PluginError`, a line
        each."""
        lacking = [
            _describe_lack(need, part)
            for source, need in self.needs
            for part in self.parts
            if part.kind == need.kind
            and self._meets(source, part.path)
            and not has(part.cls, part.config, need.capability)
        ]
        lacking += [*more, *self._agents_without_a_model()]
        if self.config.sandbox is None:
            lacking += [
                f"sandbox: the run has none ('sandbox: none'), and {part} needs one; name one, such as local."
                for part in self.sandbox_users
            ]
        if lacking:
            raise PluginError("\n".join(dict.fromkeys(lacking)))

    def check_started(self, path: str, kind: str, driver: Driver) -> None:
        """Refuse a started driver that lacks on this machine what the run needs of it. Raises `PluginError`."""
        for source, need in self.needs:
            if need.kind == kind and self._meets(source, path) and not has_now(driver, need.capability):
                name = next((part.use for part in self.parts if part.path == path), type(driver).__name__)
                raise PluginError(
                    f"{path}: {need.who} needs {_describe_need(need)}, which '{name}' can do in general but not on "
                    "this machine; its warnings say what is missing."
                )

    def _meets(self, source: str, rule: str) -> bool:
        """Return whether a task of a source (`tasks.mix.0`) may get the plugin of a rule (`sandbox.select.1`). It
        carries what its own entry adds and nothing that only other entries add; any other tag it may carry or not."""
        config = self.config
        section, selects, number = rule.partition(".select.")
        if not (isinstance(config.tasks, Mix) and selects and source.startswith("tasks.mix.")):
            return True
        added = [{*entry.tags, entry.use.rpartition(":")[2]} for entry in config.tasks.rules]
        own = added[int(source.rpartition(".")[2])]
        other = set[str]().union(*added) - own
        *before, when = [{*entry.when} for entry in getattr(config, section).rules[: int(number) + 1]]
        certain = own | {f"!{tag}" for tag in other}  # a rule above with only these in its `when` takes all its tasks
        return not when & (other | {f"!{tag}" for tag in own}) and not any(w <= certain and w != when for w in before)

    def _agents_without_a_model(self) -> Iterator[str]:
        if self.config.needs.network != "none":
            return
        for part in self.parts:
            if issubclass(part.cls, Scaffold) and part.cls.over_http and not part.cls.over_files:
                yield (
                    f"needs.network: {part} runs its agent inside the sandbox, where 'none' leaves it no way to the "
                    "model; set needs.network to endpoint-only, which lets through nothing else."
                )


def message_engine(config: EpisodeConfig) -> str | None:
    """Return the name of the engine if it answers with messages and has no tokens of a policy, else None."""
    if config.engine is None:  # no run file can say so: `ale tasks check` takes the engine out, since nothing samples
        return None
    is_one = issubclass(load_plugin("engine", config.engine, "engine").cls, MessageEngine)
    return config.engine.use if is_one else None


def _load_part(path: str, kind: str, choice: PluginChoice) -> Part:
    plugin = load_plugin(kind, choice, path)
    return Part(path, kind, choice.use, plugin.cls, plugin.config)


def _needs_of_the_file(config: EpisodeConfig) -> Iterator[Need]:
    yield Need(f"needs.network={config.needs.network}", "sandbox", NETWORKS[config.needs.network])
    if config.needs.limits_given:
        yield Need("needs.resources", "sandbox", "limits")
    if config.needs.resources.gpus:
        yield Need("needs.resources.gpus", "sandbox", "gpu")
    if config.pool is not None and config.pool.warm:
        yield Need(f"pool.warm={config.pool.warm}", "sandbox", Resets)
    for kind, words in config.needs.capabilities.items():
        yield from (Need(f"needs.capabilities.{kind}", kind, word) for word in words)


def _needs_of(part: Part) -> Iterator[Need]:
    with as_plugin_error(f"{part.path}: {part} cannot say what it needs"):
        needs = part.cls.needs(part.config)
        found = [Need(str(part), kind, word) for kind, words in needs.items() for word in words]
    yield from found


def has(cls: type[Driver], config: Any, capability: str | type) -> bool:
    """Return whether a plugin with these settings has a capability: a word, or a protocol."""
    if isinstance(capability, str):
        return capability in cls.provides(config)
    sandbox_or_driver = cls.sandbox_type_with(config) if issubclass(cls, SandboxProvider) else cls
    return issubclass(sandbox_or_driver, capability) or issubclass(cls, capability)


def has_now(driver: Driver, capability: str | type) -> bool:
    """Return whether a driver that has started has the capability on this machine."""
    if isinstance(capability, str):
        return capability in driver.capabilities
    return issubclass(getattr(driver, "sandbox_type", type(driver)), capability) or isinstance(driver, capability)


def _describe_need(need: Need) -> str:
    words = CAPABILITIES.get(need.kind, {})
    means = words.get(need.capability) if isinstance(need.capability, str) else meaning(need.capability)
    article = "an" if need.kind[0] in "aeio" else "a"
    return f"{article} {need.kind} with '{need.name}'{f' ({means})' if means else ''}"


def _describe_lack(need: Need, part: Part) -> str:
    having = [name for name in _having(need) if name != part.use.rpartition(":")[2]]
    capable = _of_its_class(part.cls, need.capability)
    if capable:
        mend = f"change its settings{f', or use {list_names(having)}' if having else ''}"
    elif having:
        mend = f"use {list_names(having)}"
    else:
        mend = f"no installed {plugin_noun(need.kind)} can"
    if need.capability in NETWORKS.values():
        modes = [mode for mode, word in NETWORKS.items() if word in part.cls.provides(part.config)]
        mend += f"; or set needs.network to what it gives: {', '.join(modes) or 'nothing'}"
    how = "with these settings cannot" if capable else "cannot"
    return f"{part.path}: {need.who} needs {_describe_need(need)}, which '{part.use}' {how}; {mend}."


def _of_its_class(cls: type[Driver], capability: str | type) -> bool:
    """Return whether a plugin has the capability with some settings."""
    if isinstance(capability, str):
        return capability in cls.capabilities
    return issubclass(getattr(cls, "sandbox_type", cls), capability)


def _having(need: Need) -> list[str]:
    """Return the installed plugins that have the capability. Their classes are imported, unless they declare their
    capabilities without an import."""
    names = set()
    for info in list_plugins(need.kind):
        if info.status != "ok":
            continue
        if isinstance(need.capability, str) and info.capabilities is not None:
            able = need.capability in info.capabilities
        else:
            able = False
            with suppress(AleError):  # of a plugin that cannot be imported
                able = _of_its_class(load_driver_class(need.kind, info.name), need.capability)
        if able:
            names.add(info.name)
    return sorted(names)


def list_names(names: Sequence[str]) -> str:
    """Return quoted names for a sentence: `'a' or 'b'`."""
    return " or ".join(f"'{name}'" for name in names)
