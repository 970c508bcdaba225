"""Whether a run's plugins can do what the run needs of them, found out before anything starts.

Needs come from four places: the plugins themselves (`Driver.needs`), the keys `needs.network` and `needs.capabilities`,
and what the stages of the run do (a trainer hands weights to an engine, a warm start wants demonstrations). What a
plugin can do is `Driver.provides` of its settings. Each need that is not met is one sentence: what is needed, who
needs it, who lacks it, and which installed plugin has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ale.errors import AleError, PluginError
from ale.installed import list_plugins
from ale.plugins import load_driver_class, validated_settings
from ale.run_config import RunConfig
from ale.specs.algorithm import Algorithm
from ale.specs.driver import Driver
from ale.specs.kinds import CAPABILITIES
from ale.specs.sandbox import NetworkMode
from ale.validation import one_line

NETWORKS: dict[NetworkMode, str] = {
    "none": "network_none", "endpoint-only": "network_endpoint", "allow": "egress_policy", "full": "network_full",
}  # fmt: skip
"""Which capability a network policy asks of a sandbox."""


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


@dataclass(frozen=True)
class Need:
    """`who` needs every plugin of `kind` to be capable of `capability`."""

    who: str
    kind: str
    capability: str


def check_capabilities(run: RunConfig, *, train: bool) -> None:
    """Refuse a run whose plugins lack what it needs; `train` where it will train. Raises `PluginError`, a line each."""
    parts = [_part(*section) for section in run.plugins()]
    needs = [*_of_the_run(run, parts, train), *(need for part in parts for need in _of_the_plugin(part))]
    lacking = [
        _sentence(need, part) for need in needs for part in parts if part.kind == need.kind and not _has(part, need)
    ]
    lacking += _never_forked(run, parts)
    lacking += [
        _cut_off(part) for part in parts if run.needs.network == "none" and getattr(part.cls, "over_http", False)
    ]
    lacking += _of_experts(run, parts)
    if lacking:
        raise PluginError("\n".join(dict.fromkeys(lacking)))


def check_started(run: RunConfig, path: str, kind: str, driver: Driver) -> None:
    """Refuse a run that needs what this machine did not give to a driver that has started. Raises `PluginError`."""
    parts = [_part(*section) for section in run.plugins()]
    needs = [_network(run), *_asked_for(run), *(need for part in parts for need in _of_the_plugin(part))]
    for need in needs:
        if need.kind == kind and need.capability not in driver.capabilities:
            name = next((part.use for part in parts if part.path == path), type(driver).__name__)
            raise PluginError(
                f"{path}: {need.who} needs {_meant(need)}, which '{name}' can do in general but not on this machine; "
                "its warnings say what is missing."
            )


def _of_experts(run: RunConfig, parts: list[Part]) -> Iterator[str]:
    """A sentence for experts that nobody starts from, and for starts from experts that nobody has."""
    if run.rl is None:
        return
    (algorithm,) = (part for part in parts if part.path == "algorithm")
    assert issubclass(algorithm.cls, Algorithm)
    wanted = algorithm.cls.wants_experts(algorithm.config)
    if run.rl.experts is None and wanted == "needed":
        yield (
            f"algorithm: '{algorithm.use}' is set to start rollouts from experts, and the run has none: give rl.experts "
            "(its keys say where they come from), or leave those settings out."
        )
    # One with a plan of its own may make experts of what the policy did.
    never = wanted == "welcome" or algorithm.cls.plan is Algorithm.plan
    if run.rollout.start_states != "replay" and run.rl.experts is None and never:
        yield "rollout.start_states: without rl.experts no rollout starts behind an expert's chunks; leave the key out."
    if run.rl.experts is not None and wanted == "no":
        yield (
            f"rl.experts: '{algorithm.use}' with these settings starts every rollout at the beginning and makes no use of "
            "experts; leave the section out, or use an algorithm that does, such as ipa."
        )


def _part(path: str, kind: str, choice: Any) -> Part:
    cls = load_driver_class(kind, choice.use, path)
    return Part(path, kind, choice.use, cls, validated_settings(cls, choice.settings, path))


def _of_the_run(run: RunConfig, parts: list[Part], train: bool) -> Iterator[Need]:
    yield _network(run)
    yield from _asked_for(run)
    if not train:
        return
    if run.sft and run.sft.runs_demonstrations:
        yield Need("sft.demonstrations", "tasks", "demonstrations")
    if run.model.scratch:
        yield Need("model.scratch", "trainer", "scratch")
    for trainer in (part for part in parts if part.kind == "trainer"):
        if "weights_in_memory" in trainer.cls.provides(trainer.config):
            yield Need(f"{trainer}, whose weights stay in memory,", "engine", "weight_update_in_place")
        else:
            yield Need(f"{trainer}, which writes its weights to a folder,", "engine", "weight_update_from_folder")
    if run.rl:
        yield Need("rl", "engine", "real_tokens")
        if run.rl.experts and run.rl.experts.demonstrate:
            yield Need("rl.experts.demonstrate", "tasks", "demonstrations")


def _network(run: RunConfig) -> Need:
    return Need(f"needs.network={run.needs.network}", "sandbox", NETWORKS[run.needs.network])


def _asked_for(run: RunConfig) -> Iterator[Need]:
    if run.needs.limits_given:
        yield Need("needs.resources", "sandbox", "limits")
    if run.rollout.start_states == "snapshot":
        yield Need("rollout.start_states=snapshot", "sandbox", "snapshot")
    for kind, words in run.needs.capabilities.items():
        yield from (Need(f"needs.capabilities.{kind}", kind, word) for word in words)


def _of_the_plugin(part: Part) -> Iterator[Need]:
    try:
        needs = part.cls.needs(part.config)
        found = [Need(str(part), kind, word) for kind, words in needs.items() for word in words]
    except AleError:
        raise
    except Exception as error:
        raise PluginError(f"{part.path}: {part} cannot say what it needs: {one_line(error)}.") from error
    yield from found


def _has(part: Part, need: Need) -> bool:
    return need.capability in part.cls.provides(part.config)


def _cut_off(part: Part) -> str:
    return (
        f"needs.network: {part} runs its agent inside the sandbox, where 'none' leaves it no way to the model; set "
        "needs.network to endpoint-only, which lets through nothing else."
    )


def _never_forked(run: RunConfig, parts: list[Part]) -> Iterator[str]:
    scaffolds = [part for part in parts if part.kind == "scaffold"]
    if run.rollout.start_states == "snapshot" and all(getattr(part.cls, "over_http", False) for part in scaffolds):
        yield (
            f"rollout.start_states: {' and '.join(map(str, scaffolds))} runs its agent inside the sandbox, and no such agent can go on "
            "in a snapshot; leave the key out, or use a scaffold that acts from outside, such as iflow."
        )


def _meant(need: Need) -> str:
    meaning = CAPABILITIES.get(need.kind, {}).get(need.capability)
    article = "an" if need.kind[0] in "aeio" else "a"
    return f"{article} {need.kind} with '{need.capability}'{f' ({meaning})' if meaning else ''}"


def _sentence(need: Need, part: Part) -> str:
    having = sorted({
        info.name for info in list_plugins(need.kind)
        if need.capability in info.capabilities and info.status == "ok" and info.name != part.use.rpartition(":")[2]
    })  # fmt: skip
    if need.capability in part.cls.capabilities:
        mend = f"change its settings{f', or use {_or(having)}' if having else ''}"
    elif having:
        mend = f"use {_or(having)}"
    else:
        mend = f"no installed {need.kind} plugin can"
    if need.capability in NETWORKS.values():
        modes = [mode for mode, word in NETWORKS.items() if word in part.cls.provides(part.config)]
        mend += f"; or set needs.network to what it gives: {', '.join(modes) or 'nothing'}"
    how = "with these settings cannot" if need.capability in part.cls.capabilities else "cannot"
    return f"{part.path}: {need.who} needs {_meant(need)}, which '{part.use}' {how}; {mend}."


def _or(names: list[str]) -> str:
    return " or ".join(f"'{name}'" for name in names)
