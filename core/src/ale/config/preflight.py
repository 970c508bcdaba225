"""Every check of a run that can be made before anything starts; `preflight` makes them all.

1. `_check_sections` checks that the run file's sections, the command line and the files they name fit together.
2. `check_capabilities` checks that the run's plugins can do what it needs of them.
3. `check_started` checks, once a driver has started, that it can also do so on this machine.

Needs come from four places: the plugins themselves (`Driver.needs`), the keys `needs.network` and `needs.capabilities`,
and the stages of the run (a warm start wants demonstrations). A plugin's capabilities are those of `Driver.provides`
with its settings, and the protocols of its class of sandboxes. Each need that is not met makes one sentence: what is
needed, who needs it, which plugin lacks it, and which installed plugin has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ale.config.run import MIXTURE, MODELS, RL, RunConfig
from ale.errors import AleError, ConfigError, PluginError
from ale.registry.drivers import load_driver_class, load_plugin
from ale.registry.installed import list_plugins
from ale.registry.validation import as_plugin_error
from ale.specs.choice import Mix, PluginChoice
from ale.specs.driver import Driver
from ale.specs.engine import InferenceEngine, MessageEngine, agree_on_transport
from ale.specs.kinds import CAPABILITIES
from ale.specs.package_sections import Need
from ale.specs.reward import Reward
from ale.specs.sandbox import NetworkMode, SandboxProvider
from ale.specs.sandbox_protocols import meaning
from ale.specs.scaffold import Scaffold
from ale.specs.trainer import TrainerBackend
from ale.specs.training_stage import TrainingStage

Only = Literal["all", "rollout", "train"]
"""The whole run, or half of its loop."""
NETWORKS: dict[NetworkMode, str] = {
    "none": "network_none",
    "endpoint-only": "network_endpoint",
    "allow": "egress_policy",
    "full": "network_full",
}
"""The capability that a sandbox needs for a network policy."""


@dataclass(frozen=True)
class Part:
    """A plugin of the run with its settings."""

    path: str
    kind: str
    use: str
    cls: type[Driver]
    config: Any

    def __str__(self) -> str:
        return f"the {self.kind} plugin '{self.use}'"


def which_half(only: str) -> Only:
    """Return the value of the option `--only`. Raises `ConfigError`."""
    if only not in ("all", "rollout", "train"):
        raise ConfigError(f"--only takes 'rollout' or 'train', not '{only}'.")
    return only  # type: ignore[return-value]


def preflight(run: RunConfig, only: Only = "all", source: Path | None = None) -> None:
    """Refuse a run that could not work. `source` is the run folder from which it takes its policy or its rollouts.

    Raises `ConfigError`, `PluginError`.
    """
    _check_sections(run, only, source)
    check_capabilities(run, train=only != "rollout" and run.trains)


# -- the sections ------------------------------------------------------------------------------------------------------


def _check_sections(run: RunConfig, only: Only, source: Path | None) -> None:
    if isinstance(run.tasks, Mix):
        MIXTURE.require()
    _check_halves(only, source)
    if run.model.path is not None:
        MODELS.require()().check(run.model.path, run.model.revision)
    _check_message_engine(run, only, source)
    found = []
    for stage in stages_of(run, only, source).values():
        try:
            stage.check(run)
        except ConfigError as error:
            found.append(str(error))
    if found:
        raise ConfigError("\n".join(dict.fromkeys(found)))


def stages_of(run: RunConfig, only: Only, source: Path | None) -> dict[str, TrainingStage]:
    """Return the stages of the run by name, in their order, or half of its loop. Raises `ConfigError` if no package
    brings the loop."""
    if only == "rollout":
        return {"rl": RL.require().rollout_half(run.rl, source)}
    if only == "train":
        return {"rl": RL.require().training_half(run.rl, source)}
    return {name: section.stage() for name, section in run.stages.items()}


def _check_halves(only: Only, source: Path | None) -> None:
    if only == "train" and source is None:
        raise ConfigError("'--only train' trains on a dump of rollouts: name its run folder with '--from RUN'.")
    if only == "all" and source is not None:
        raise ConfigError("'--from RUN' goes with '--only rollout' or '--only train'.")
    if source is not None and not (source / "run.db").is_file():
        raise ConfigError(f"'--from {source}': there is no run folder (it holds no run.db).")


def _check_message_engine(run: RunConfig, only: Only, source: Path | None) -> None:
    name = message_engine(run)
    if name and (only == "train" or (only == "all" and run.trains)):
        raise ConfigError(
            f"engine: '{name}' answers with messages of another model, whose tokens are not the policy's, "
            "so there is nothing to train. Use '--only rollout' or 'ale eval'; what a rollout leaves is data for "
            "sft.demonstrations.data of another run."
        )
    if name and source is not None:
        raise ConfigError(f"engine: '{name}' answers in the policy's place; leave out '--from RUN'.")


# -- what plugins can do -----------------------------------------------------------------------------------------------


def check_capabilities(run: RunConfig, *, train: bool) -> None:
    """Refuse a run whose plugins lack what it needs (and what it needs to `train`). Raises `PluginError`, a line
    each."""
    parts = [_part(*section) for section in run.plugins()]
    needs = [("", n) for n in _of_the_run(run, train)] + [(p.path, n) for p in parts for n in _of_the_plugin(p)]
    lacking = [
        _sentence(need, part)
        for source, need in needs
        for part in parts
        if part.kind == need.kind and _meet(run, source, part.path) and not has(part.cls, part.config, need.capability)
    ]
    lacking += _without_transport(parts) if train else []
    lacking += _agents_without_a_model(run, parts)
    if run.sandbox is None:
        lacking += [f"sandbox: it is none, and {p} needs one; name one, such as local." for p in sandbox_users(run)]
    if lacking:
        raise PluginError("\n".join(dict.fromkeys(lacking)))


def sandbox_users(run: RunConfig) -> list[Part]:
    """Return the scaffolds and rewards that use a sandbox; without any, no episode of the run starts one."""
    parts = [_part(*section) for section in run.plugins()]
    return [part for part in parts if issubclass(part.cls, Scaffold | Reward) and part.cls.uses_sandbox(part.config)]


def message_engine(run: RunConfig) -> str | None:
    """Return the name of the run's engine if it answers with messages and has no tokens of a policy, else None."""
    if run.engine is None:  # no run file can say so: `ale tasks check` takes the engine out, since nothing samples
        return None
    return run.engine.use if issubclass(load_plugin("engine", run.engine, "engine").cls, MessageEngine) else None


def check_started(run: RunConfig, path: str, kind: str, driver: Driver) -> None:
    """Refuse a run that needs what a started driver cannot do on this machine. Raises `PluginError`."""
    parts = [_part(*section) for section in run.plugins()]
    needs = [*_needs_of_the_file(run)]
    needs += [need for part in parts if _meet(run, part.path, path) for need in _of_the_plugin(part)]
    for need in needs:
        if need.kind == kind and not has_now(driver, need.capability):
            name = next((part.use for part in parts if part.path == path), type(driver).__name__)
            raise PluginError(
                f"{path}: {need.who} needs {_describe_need(need)}, which '{name}' can do in general but not on this "
                "machine; its warnings say what is missing."
            )


def _part(path: str, kind: str, choice: PluginChoice) -> Part:
    plugin = load_plugin(kind, choice, path)
    return Part(path, kind, choice.use, plugin.cls, plugin.config)


def _of_the_run(run: RunConfig, train: bool) -> Iterator[Need]:
    yield from _needs_of_the_file(run)
    if not train:
        return
    for section in run.stages.values():
        yield from section.needs()


def _needs_of_the_file(run: RunConfig) -> Iterator[Need]:
    yield Need(f"needs.network={run.needs.network}", "sandbox", NETWORKS[run.needs.network])
    if run.needs.limits_given:
        yield Need("needs.resources", "sandbox", "limits")
    if run.needs.resources.gpus:
        yield Need("needs.resources.gpus", "sandbox", "gpu")
    if run.pool is not None:
        yield from run.pool.needs()
    for kind, words in run.needs.capabilities.items():
        yield from (Need(f"needs.capabilities.{kind}", kind, word) for word in words)


def _of_the_plugin(part: Part) -> Iterator[Need]:
    with as_plugin_error(f"{part.path}: {part} cannot say what it needs"):
        needs = part.cls.needs(part.config)
        found = [Need(str(part), kind, word) for kind, words in needs.items() for word in words]
    yield from found


def _meet(run: RunConfig, source: str, rule: str) -> bool:
    """Return whether a task of a source (`tasks.mix.0`) may get the plugin of a rule (`sandbox.select.1`). It carries
    what its own entry adds and nothing that only other entries add; any other tag it may carry or not."""
    section, selects, number = rule.partition(".select.")
    if not (isinstance(run.tasks, Mix) and selects and source.startswith("tasks.mix.")):
        return True
    added = [{*entry.tags, entry.use.rpartition(":")[2]} for entry in run.tasks.rules]
    own = added[int(source.rpartition(".")[2])]
    other = set[str]().union(*added) - own
    *before, when = [{*entry.when} for entry in getattr(run, section).rules[: int(number) + 1]]
    certain = own | {f"!{tag}" for tag in other}  # a rule above with nothing else in its `when` takes all of its tasks
    return not when & (other | {f"!{tag}" for tag in own}) and not any(w <= certain and w != when for w in before)


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


def _agents_without_a_model(run: RunConfig, parts: list[Part]) -> Iterator[str]:
    if run.needs.network != "none":
        return
    for part in parts:
        if issubclass(part.cls, Scaffold) and part.cls.over_http and not part.cls.over_files:
            yield (
                f"needs.network: {part} runs its agent inside the sandbox, where 'none' leaves it no way to the model; "
                "set needs.network to endpoint-only, which lets through nothing else."
            )


def _without_transport(parts: list[Part]) -> Iterator[str]:
    """Yield a sentence if trainer and engine have no transport of weights in common."""
    for trainer in (part for part in parts if part.kind == "trainer"):
        for engine in (part for part in parts if part.kind == "engine"):
            assert issubclass(trainer.cls, TrainerBackend)
            assert issubclass(engine.cls, InferenceEngine)
            offered, accepted = trainer.cls.transports, getattr(engine.config, "transports", engine.cls.transports)
            if agree_on_transport(offered, accepted) is None:
                takes, gives = _or(accepted) or "no transport", _or(offered) or "no transport"
                yield (
                    f"{engine.path}: '{engine.use}' takes new weights by {takes}, and {trainer} publishes them by "
                    f"{gives}; use an engine and a trainer that have a transport in common."
                )


def _describe_need(need: Need) -> str:
    words = CAPABILITIES.get(need.kind, {})
    means = words.get(need.capability) if isinstance(need.capability, str) else meaning(need.capability)
    article = "an" if need.kind[0] in "aeio" else "a"
    return f"{article} {need.kind} with '{need.name}'{f' ({means})' if means else ''}"


def _sentence(need: Need, part: Part) -> str:
    having = [name for name in _having(need) if name != part.use.rpartition(":")[2]]
    capable = _of_its_class(part.cls, need.capability)
    if capable:
        mend = f"change its settings{f', or use {_or(having)}' if having else ''}"
    elif having:
        mend = f"use {_or(having)}"
    else:
        mend = f"no installed {need.kind} plugin can"
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
    """Return the installed plugins that have the capability; for a protocol, their classes are imported."""
    working = [info for info in list_plugins(need.kind) if info.status == "ok"]
    if isinstance(need.capability, str):
        return sorted({info.name for info in working if need.capability in info.capabilities})
    names = set()
    for info in working:
        with suppress(AleError):  # of a plugin that cannot be imported
            if _of_its_class(load_driver_class(need.kind, info.name), need.capability):
                names.add(info.name)
    return sorted(names)


def _or(names: Sequence[str]) -> str:
    return " or ".join(f"'{name}'" for name in names)
