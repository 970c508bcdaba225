"""A scaffold for an agent that is a command in the sandbox: writes its settings, runs it, reports how it ended.

1. `prepare` asks for an image that has the agent (`baking.py`) and for access to the model: an HTTP server that starts
   with the scaffold (`SessionServer`), or, in a sandbox without a network, files in the sandbox (`file_access.py`).
2. The sandbox may have served an earlier episode, so the settings, with this episode's key, are written for each one.
3. The end of the agent's output is kept and passed to the session, even if the episode times out."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from ale.errors import AgentError, ConfigError, PluginError
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.sandbox import ENDPOINT_URL, ExecResult, Sandbox, SandboxProvider, SandboxSpec
from ale.specs.sandbox_protocols import Snapshots, Streams
from ale.specs.scaffold import ModelSession, Scaffold
from ale.task import Task
from ale_endpoint.agents.agent_variables import MODEL, AgentVariables, Dialect, base_url
from ale_endpoint.agents.baking import Bakery
from ale_endpoint.agents.file_access import model_through_files
from ale_endpoint.agents.install_recipes import Recipe
from ale_endpoint.session_server import SessionServer

OUTPUT_CHARS = 1500
NO_KEY = "none"
"""The key where there is only one session and so any key is accepted."""


class CommandAgentConfig(PluginConfig):
    """Settings that all scaffolds around commands share."""

    install: bool = Field(
        True,
        description="Install the agent once into each image that lacks it; false: all images already have it.",
    )
    timeout_s: float = Field(
        86400.0, gt=0, description="Seconds after which the agent is stopped; rollout.timeout_s ends the episode."
    )
    unix: Path | None = Field(
        None,
        description=(
            "Also serve the model at this Unix socket, so that its folder can be mounted in containers without a "
            "network. There, the command must start a relay (`ale endpoint relay`), which serves the model at "
            "port 8600."
        ),
    )
    pictures: Literal["refuse", "leave_out"] = Field(
        "refuse",
        description="What is done with pictures that the agent sends, since a policy sees only text. refuse: the call "
        "fails, and an episode that ends with it is a failure; leave_out: '[picture left out]' stands in their place.",
    )
    output_chars: int = Field(20_000, gt=0, description="Number of characters kept from the end of its output.")

    @property
    def own_recipe(self) -> Recipe | None:
        """Return the recipe that installs the agent into images; None if images already have it."""
        return None


@runtime_checkable
class Limited(Protocol):
    """A session that says how many tokens a conversation and an answer may have."""

    max_context: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Launch:
    """How an agent is started: a shell command, its environment and standard input, and files to write first."""

    command: str
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path -> text; `~/` is the home folder of the user that runs the agent."""


class CommandAgent(Driver, Scaffold):
    """A subclass defines `launch`, and its settings define `own_recipe` if the agent has to be installed.

    A run ends with `finish` if the command's exit code is 0, with `agent_error` for any other code, or with
    `agent_timeout`; a subclass may override `end_reason` to report more, such as `max_turns`."""

    api_version = ">=1.0,<1.2"
    over_http = True
    over_files = True
    dialect: Dialect = "chat"
    config: CommandAgentConfig

    def __init__(self, config: CommandAgentConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self._server = SessionServer(config.unix, config.pictures)
        self._bakery = Bakery(context.channel.event)

    @classmethod
    def needs(cls, config: Any) -> dict[str, tuple[type, ...]]:
        """Return the protocols that a run needs: `Snapshots` if the agent has to be installed into images."""
        return {} if config.own_recipe is None else {"sandbox": (Snapshots,)}

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of the agent; None if it needs nothing in the image, or images already have it."""
        return self.config.own_recipe

    async def start(self) -> None:
        """Serve the model. Raises `ConfigError` if the Unix socket cannot be opened."""
        await self._server.start()

    async def close(self) -> None:
        """Stop serving the model."""
        await self._server.close()

    async def prepare(self, spec: SandboxSpec, provider: SandboxProvider) -> SandboxSpec:
        if spec.network == "none" and self.config.unix is None and self.dialect != "chat":
            raise ConfigError(
                "needs.network: without a network an agent asks the model through files, as chat completions, but this "
                f"one speaks the API '{self.dialect}'; set needs.network to endpoint-only."
            )
        if spec.network != "none":
            spec = spec.model_copy(update={"endpoint": self._server.origin})
        recipe = self.recipe
        return spec if recipe is None else await self._bakery.with_agent(recipe, spec, provider)

    @abstractmethod
    def launch(self, variables: AgentVariables) -> Launch:
        """Return how to start the agent for an episode."""

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        """Raises `AgentError` if the agent ends without having asked the model."""
        async with self._model(sandbox, session) as (origin, api_key):
            variables = AgentVariables(
                task=task.instruction, base_url=base_url(origin, self.dialect), api_key=api_key, model=MODEL
            )
            if isinstance(session, Limited):
                variables = replace(variables, max_context=session.max_context, max_tokens=session.max_tokens)
            result, output = await self._run_and_report(variables, sandbox, session)
        if not session.calls and session.fault is None:
            raise AgentError(
                f"The agent ended with exit code {result.exit_code} and never asked the model. The end of its output: "
                f"{str(output).strip()[-OUTPUT_CHARS:] or '(nothing).'}"
            )
        return "agent_timeout" if result.timed_out else await self.end_reason(result, sandbox)

    @asynccontextmanager
    async def _model(self, sandbox: Sandbox, session: ModelSession) -> AsyncIterator[tuple[str, str]]:
        """Yield the model's URL and key, which are valid in the block. Raises `ConfigError` if there is no access."""
        if sandbox.spec.network == "none" and self.config.unix is None:
            async with model_through_files(sandbox, session, self.config.pictures) as origin:
                yield origin, NO_KEY
            return
        with self._server.open(session) as access:
            yield self._origin(sandbox), access.api_key

    def _origin(self, sandbox: Sandbox) -> str:
        """Return the server's URL for programs in the sandbox. Raises `ConfigError` if they cannot reach it."""
        if sandbox.endpoint_url is not None:
            return sandbox.endpoint_url
        if sandbox.spec.network == "full":  # it reaches the host directly
            return self._server.origin
        if sandbox.spec.network == "none":  # a relay offers the Unix socket at a port
            return ENDPOINT_URL
        raise ConfigError(
            f"The agent in the sandbox {sandbox.id} cannot reach the model; set needs.network to endpoint-only."
        )

    async def _run_and_report(
        self, variables: AgentVariables, sandbox: Sandbox, session: ModelSession
    ) -> tuple[ExecResult, OutputTail]:
        """Run the agent to its end; always pass its output to the session."""
        launch = self.launch(variables)
        if launch.files:
            await sandbox.upload(await resolve_home(sandbox, launch.files))
        output = OutputTail(self.config.output_chars)
        began, result = time.monotonic(), None
        try:
            result = await run_and_collect(
                sandbox, launch, {**variables.variables, **launch.env}, self.config.timeout_s, output
            )
        finally:
            session.observe(
                max(0, session.calls - 1),
                tool="agent",
                arguments={"command": launch.command},
                text=str(output),
                exit_code=None if result is None else result.exit_code,
                seconds=time.monotonic() - began,
            )
        return result, output

    async def end_reason(self, result: ExecResult, sandbox: Sandbox) -> str:
        """Return why the agent ended, in a word; override it if the exit code does not say."""
        return "finish" if result.exit_code == 0 else "agent_error"


class OutputTail:
    """The last part of a command's output, standard output and errors as they arrive."""

    def __init__(self, most_chars: int) -> None:
        self._most, self._data = most_chars, bytearray()

    def add(self, data: bytes) -> None:
        """Add a piece of output."""
        self._data += data
        del self._data[: -4 * self._most]

    def __str__(self) -> str:
        return self._data.decode("utf-8", "replace")[-self._most :]


async def run_and_collect(
    sandbox: Sandbox, launch: Launch, env: Mapping[str, str], timeout_s: float, output: OutputTail
) -> ExecResult:
    """Run the command and collect its output as it arrives, or at the end if the provider does not stream."""
    stdin = launch.stdin.encode("utf-8", "surrogateescape")
    if not isinstance(sandbox, Streams):
        result = await sandbox.exec(launch.command, timeout_s=timeout_s, env=env, stdin=stdin)
        output.add(result.stdout + result.stderr)
        return result
    async with aclosing(sandbox.exec_stream(launch.command, timeout_s=timeout_s, env=env, stdin=stdin)) as items:
        async for item in items:
            if isinstance(item, ExecResult):
                return item
            output.add(item.data)
    raise PluginError(f"The sandbox {sandbox.id} returned no result of a command.")


async def resolve_home(sandbox: Sandbox, files: Mapping[str, str]) -> dict[str, bytes]:
    """Replace `~/` in the paths of files by the home folder; encode the texts."""
    home = ""
    if any(path.startswith("~/") for path in files):
        home = (await sandbox.exec('printf %s "$HOME"', timeout_s=20)).stdout.decode("utf-8", "surrogateescape")
    return {
        (home + path[1:] if path.startswith("~/") else path): text.encode("utf-8", "surrogateescape")
        for path, text in files.items()
    }
