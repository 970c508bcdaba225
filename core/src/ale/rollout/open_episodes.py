"""Starts the drivers that episodes are made with: those of sandboxes, scaffolds and rewards, and the model sessions.

Whoever makes episodes calls it: the run itself, and each worker of a cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from ale.config.preflight import check_started, sandbox_users
from ale.config.run import RunConfig
from ale.registry.drivers import open_driver
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes
from ale.rollout.no_sandbox import NoSandboxes
from ale.rollout.selection import Option, Selection
from ale.session.reply_format import ReplyForm
from ale.session.session import Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.choice import PluginChoice, Select
from ale.specs.driver import DriverContext
from ale.specs.engine import InferenceEngine
from ale.specs.package_sections import PooledProvider


async def start_driver(
    stack: AsyncExitStack, config: RunConfig, context: DriverContext, kind: str, choice: PluginChoice, path: str = ""
) -> Any:
    """Start the driver at `path` of the run file (default: `kind`); the stack closes it. Raises `AleError`."""
    driver = await open_driver(stack, kind, choice, context, path or kind)
    check_started(config, path or kind, kind, driver)
    return driver


async def open_episodes(
    stack: AsyncExitStack, config: RunConfig, context: DriverContext, hooks: Hooks, engine: InferenceEngine
) -> tuple[Episodes, dict[str, PooledProvider]]:
    """Return episodes that sample from this engine, and the pools of their sandbox plugins by name (none if the run has
    no pool)."""
    pools: dict[str, PooledProvider] = {}

    async def start(kind: str, choice: PluginChoice, path: str = "") -> Any:
        driver = await start_driver(stack, config, context, kind, choice, path)
        if kind == "sandbox" and config.pool is not None:
            name = choice.use if choice.use not in pools else f"{choice.use}.{len(pools)}"
            driver = pools[name] = await stack.enter_async_context(config.pool.pool(driver, context.channel))
        return driver

    async def select(kind: str, section: PluginChoice | Select) -> Selection[Any]:
        if isinstance(section, PluginChoice):
            return Selection(kind, [Option(section.use, await start(kind, section))])
        options: list[Option[Any]] = []
        started: list[tuple[tuple[str, Any], Any]] = []
        for i, rule in enumerate(section.rules):
            same = (rule.use, rule.settings)  # rules that differ only in `when` share a driver
            driver = next((found for made_of, found in started if made_of == same), None)
            if driver is None:
                driver = await start(kind, rule, f"{kind}.{section.key}.{i}")
                started.append((same, driver))
            names = [other.use for other in section.rules]
            name = rule.use if names.count(rule.use) == 1 else f"{rule.use}.{i}"
            options.append(Option(name, driver, rule.when, rule.weight))
        return Selection(kind, options, config.seed)

    reward = await select("reward", config.reward)
    scaffold = await select("scaffold", config.scaffold)
    provider: Selection[Any] = Selection("sandbox", [Option("none", NoSandboxes())])
    if config.sandbox is not None and sandbox_users(config):
        provider = await select("sandbox", config.sandbox)
    tool_format = await start("tool_format", config.session.tool_format, "session.tool_format")
    sessions = Sessions(byte_tokenizer(), engine, hooks, ReplyForm(tool_format, config.session.thoughts))
    made_with = provider, scaffold, reward, sessions, hooks, config.rollout, config.needs, context.labels
    return Episodes(*made_with), pools
