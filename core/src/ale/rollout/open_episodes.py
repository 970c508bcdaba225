"""Starts the drivers that episodes are made with: those of sandboxes, scaffolds and rewards, and the model sessions.

Whoever makes episodes calls it: the run itself, and each worker of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from ale.config.capabilities import Requirements
from ale.registry.drivers import open_driver
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes
from ale.rollout.no_sandbox import NoSandboxes
from ale.rollout.sandbox_pool.pool import SandboxPool
from ale.rollout.selection import Option, Selection
from ale.session.reply_format import ReplyForm
from ale.session.session import Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.choice import PluginChoice, Select
from ale.specs.driver import DriverContext
from ale.specs.engine import InferenceEngine
from ale.specs.sandbox_protocols import ReportsMetrics


@dataclass(frozen=True)
class OpenEpisodes:
    """Episodes whose drivers have started, and the pools of their sandbox plugins."""

    episodes: Episodes
    pools: Mapping[str, ReportsMetrics]
    """By the plugin's name in the run; empty if the run has no pool."""


async def start_driver(
    stack: AsyncExitStack,
    required: Requirements,
    context: DriverContext,
    kind: str,
    choice: PluginChoice,
    path: str = "",
) -> Any:
    """Start the driver at `path` of the run file (default: `kind`); the stack closes it. Raises `AleError`."""
    driver = await open_driver(stack, kind, choice, context, path or kind)
    required.check_started(path or kind, kind, driver)
    return driver


async def open_episodes(
    stack: AsyncExitStack, required: Requirements, context: DriverContext, hooks: Hooks, engine: InferenceEngine
) -> OpenEpisodes:
    """Open the episodes of a configuration, which sample from this engine; the stack closes them. Raises `AleError`."""
    config = required.config
    pools: dict[str, SandboxPool] = {}

    async def start(kind: str, choice: PluginChoice, path: str = "") -> Any:
        driver = await start_driver(stack, required, context, kind, choice, path)
        if kind == "sandbox" and config.pool is not None:
            name = choice.label if choice.label not in pools else f"{choice.label}.{len(pools)}"
            pool = SandboxPool(driver, config.pool, context.channel)
            driver = pools[name] = await stack.enter_async_context(pool)
        return driver

    async def select(kind: str, section: PluginChoice | Select) -> Selection[Any]:
        if isinstance(section, PluginChoice):
            return Selection(kind, [Option(section.label, await start(kind, section))])
        options: list[Option[Any]] = []
        started: list[tuple[tuple[str, Any], Any]] = []
        for i, rule in enumerate(section.rules):
            same = (rule.use, rule.settings)  # rules that differ only in `when` share a driver
            driver = next((found for made_of, found in started if made_of == same), None)
            if driver is None:
                driver = await start(kind, rule, f"{kind}.{section.key}.{i}")
                started.append((same, driver))
            names = [other.label for other in section.rules]
            name = rule.label if names.count(rule.label) == 1 else f"{rule.label}.{i}"
            options.append(Option(name, driver, rule.when, rule.weight))
        return Selection(kind, options, config.seed)

    reward = await select("reward", config.reward)
    scaffold = await select("scaffold", config.scaffold)
    provider: Selection[Any] = Selection("sandbox", [Option("none", NoSandboxes())])
    if config.sandbox is not None and required.sandbox_users:
        provider = await select("sandbox", config.sandbox)
    tool_format = await start("tool_format", config.session.tool_format, "session.tool_format")
    form = ReplyForm(tool_format, config.session.thoughts, config.session.control_tokens)
    episodes = Episodes(
        provider=provider,
        scaffold=scaffold,
        reward=reward,
        sessions=Sessions(byte_tokenizer(), engine, hooks, form),
        hooks=hooks,
        config=config.rollout,
        needs=config.needs,
        labels=context.labels,
        overlong=config.tasks.overlong,
    )
    return OpenEpisodes(episodes, pools)
