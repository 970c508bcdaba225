"""The settings of the engine `mixed`, and what its parts must have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from ale.config.plugin_field import PluginField
from ale.registry.drivers import LoadedPlugin, load_plugin
from ale.registry.validation import Mistake, Mistakes
from ale.specs.choice import PluginChoice
from ale.specs.driver import PluginConfig
from ale.specs.engine import InferenceEngine, MessageEngine
from ale_engines.pool.pooled_engine import PooledEngine


class MixedSettings(PluginConfig):
    """Settings of the engine `mixed`: its parts, each an engine of its own."""

    parts: Annotated[tuple[PluginChoice, ...], PluginField("engine")] = Field(
        description="The engines, each with its own settings, such as {use: vllm, replicas: 2}."
    )

    @field_validator("parts")
    @classmethod
    def check_parts(cls, parts: tuple[PluginChoice, ...]) -> tuple[PluginChoice, ...]:
        """Refuse parts that cannot serve the same conversations with the same weights."""
        loaded = [load_plugin("engine", part) for part in parts]
        named = [(part.use, plugin) for part, plugin in zip(parts, loaded, strict=True)]
        if found := _unfit(named) or _unlike(named):
            raise Mistakes(found).as_validation_error()
        return parts

    @property
    def transports(self) -> tuple[str, ...]:
        """The transports of new weights that all parts take."""
        first, *others = (_transports(load_plugin("engine", part)) for part in self.parts)
        return tuple(name for name in first if all(name in each for each in others))


def _transports(plugin: LoadedPlugin) -> tuple[str, ...]:
    assert issubclass(plugin.cls, InferenceEngine)
    taken: tuple[str, ...] = getattr(plugin.config, "transports", plugin.cls.transports)
    return taken


def _unfit(named: list[tuple[str, LoadedPlugin]]) -> list[Mistake]:
    """Return what is wrong with single parts."""
    found: list[Mistake] = []
    pools: set[type] = set()
    for number, (use, plugin) in enumerate(named):
        if issubclass(plugin.cls, MessageEngine):
            sentence = f"'{use}' answers with messages of another model and has no tokens of the policy; take it out."
            found.append(((str(number),), sentence))
        if plugin.cls in pools:
            sentence = (
                f"'{use}' is a part already, and its servers are told apart by their numbers; give that part more of "
                "them (replicas, or a list under url)."
            )
            found.append(((str(number),), sentence))
        if issubclass(plugin.cls, PooledEngine):
            pools.add(plugin.cls)
    return found


def _unlike(named: list[tuple[str, LoadedPlugin]]) -> list[Mistake]:
    """Return in what the parts differ though they must not."""
    if not named:
        return [((), "must list at least one engine, such as {use: torch}.")]
    taken = [(use, _transports(plugin)) for use, plugin in named]
    if not set.intersection(*(set(names) for _, names in taken)):
        each = "; ".join(f"'{use}' takes {' or '.join(names) or 'none'}" for use, names in taken)
        sentence = f"the parts have no transport of new weights in common ({each}); take parts that have one."
        return [((), sentence)]
    lengths = {n: length for n, (_, plugin) in enumerate(named) if (length := getattr(plugin.config, "max_context", 0))}
    if len(set(lengths.values())) > 1:
        each = ", ".join(f"{length} in parts.{number}" for number, length in lengths.items())
        sentence = f"max_context is {each}: a conversation may go on at any of them, so set it to one number in all."
        return [((), sentence)]
    return []
