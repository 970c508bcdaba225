"""An agent that is a command in the sandbox: its settings are written, it is run to its end, and how it ended is told.

The sandbox may have served an episode before: settings, with this one's key, are written anew each time, and only the agent starts
again. What it prints is kept from the end backwards and told to the session, also where the episode's time is up.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from ale.errors import AgentError, ConfigError, PluginError
from ale.specs.driver import PluginConfig
from ale.specs.sandbox import ExecResult, Sandbox
from ale.specs.scaffold import ModelSession, Recipe, Scaffold
from ale.task import Task
from ale_agents.line import Dialect, Line, base_url

SAID_CHARS = 1500


class CommandAgentConfig(PluginConfig):
    """Settings that scaffolds around commands share."""

    install: bool = Field(
        True,
        description="Put the agent into the image of the sandbox, once, where it is not there; false: images have it.",
    )
    timeout_s: float = Field(
        86400.0, gt=0, description="Seconds after which the agent is ended; rollout.timeout_s ends the episode."
    )
    output_chars: int = Field(20_000, gt=0, description="Characters kept of what it prints, the last ones.")

    @property
    def own_recipe(self) -> Recipe | None:
        """How the agent comes into images with these settings; None where they have it."""
        return None


@dataclass(frozen=True, slots=True)
class Launch:
    """How an agent is started: a command for a shell, its environment, its standard input, files to be there first."""

    command: str
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path -> text; `~/` is the home folder of who runs it."""


class CommandAgent(Scaffold):
    """Made whole by `launch`, and by its settings' `own_recipe` for an agent that has to be installed.

    A run ends with `finish` where the command's exit code is 0, with `agent_error` for any other, and with `agent_timeout`;
    what overrides `ended` may tell more, such as `max_turns`.
    """

    api_version = ">=1.1,<1.3"
    over_http = True
    dialect: Dialect = "chat"
    config: CommandAgentConfig

    @classmethod
    def needs(cls, config: Any) -> dict[str, tuple[str, ...]]:
        """Snapshots, where the agent has to be put into images."""
        return {} if config.own_recipe is None else {"sandbox": ("snapshot",)}

    @property
    def recipe(self) -> Recipe | None:
        """See `Scaffold.recipe`."""
        return self.config.own_recipe

    @abstractmethod
    def launch(self, line: Line) -> Launch:
        """How the agent is started for an episode."""

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        """See `Scaffold.run`. Raises `AgentError` for an agent that ends without having asked the model."""
        line = Line(task.instruction, base_url(origin(sandbox, session), self.dialect), session.api_key)
        launch = self.launch(line)
        if launch.files:
            await sandbox.upload(await placed(sandbox, launch.files))
        said = Said(self.config.output_chars)
        began, result = time.monotonic(), None
        try:
            result = await followed(sandbox, launch, {**line.variables, **launch.env}, self.config.timeout_s, said)
        finally:
            code = None if result is None else result.exit_code
            session.observe(
                max(0, session.calls - 1),
                "agent",
                {"command": launch.command},
                str(said),
                code,
                time.monotonic() - began,
            )
        if not session.calls:
            raise AgentError(
                f"The agent ended with exit code {result.exit_code} and never asked the model. The end of what it said: "
                f"{str(said).strip()[-SAID_CHARS:] or 'nothing.'}"
            )
        return "agent_timeout" if result.timed_out else await self.ended(result, sandbox)

    async def ended(self, result: ExecResult, sandbox: Sandbox) -> str:
        """Why it ended, in a word; for an agent that tells in another way than by its exit code."""
        return "finish" if result.exit_code == 0 else "agent_error"


class Said:
    """The end of what a command prints, standard output and errors as they come."""

    def __init__(self, most_chars: int) -> None:
        self._most, self._data = most_chars, bytearray()

    def add(self, data: bytes) -> None:
        """Take a piece more."""
        self._data += data
        del self._data[: -4 * self._most]

    def __str__(self) -> str:
        return self._data.decode("utf-8", "replace")[-self._most :]


async def followed(
    sandbox: Sandbox, launch: Launch, env: Mapping[str, str], timeout_s: float, said: Said
) -> ExecResult:
    """Run the command and note what it prints while it does, or at its end where the provider hands nothing out before."""
    stdin = launch.stdin.encode("utf-8", "surrogateescape")
    try:
        async with aclosing(sandbox.exec_stream(launch.command, timeout_s=timeout_s, env=env, stdin=stdin)) as items:
            async for item in items:
                if isinstance(item, ExecResult):
                    return item
                said.add(item.data)
    except PluginError:
        result = await sandbox.exec(launch.command, timeout_s=timeout_s, env=env, stdin=stdin)
        said.add(result.stdout + result.stderr)
        return result
    raise PluginError(f"The sandbox {sandbox.id} handed out no result of a command.")


async def placed(sandbox: Sandbox, files: Mapping[str, str]) -> dict[str, bytes]:
    """The files by where they go, the home folder found out."""
    home = ""
    if any(path.startswith("~/") for path in files):
        home = (await sandbox.exec('printf %s "$HOME"', timeout_s=20)).stdout.decode("utf-8", "surrogateescape")
    return {
        (home + path[1:] if path.startswith("~/") else path): text.encode("utf-8", "surrogateescape")
        for path, text in files.items()
    }  # fmt: skip


def origin(sandbox: Sandbox, session: ModelSession) -> str:
    """Where programs in the sandbox find the endpoint. Raises `ConfigError` where they do not."""
    if sandbox.endpoint_url is not None:
        return sandbox.endpoint_url
    if sandbox.spec.network == "full":  # nothing stands between it and the host
        return session.base_url.removesuffix("/v1")
    raise ConfigError(
        f"The sandbox {sandbox.id} has no way to the model endpoint, which its agent must reach; set needs.network to "
        "endpoint-only."
    )
