"""The scaffold `cli`: a command-line agent as run files describe it, or one of those that are shipped."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.scaffold import AGENTS, Recipe
from ale_agents import CommandAgent, CommandAgentConfig, Launch, Line
from ale_agents.line import Dialect
from ale_cli.shipped import SHIPPED, Shipped

NAMES = "$ALE_TASK, $ALE_BASE_URL, $ALE_API_KEY and $ALE_MODEL stand for the episode's."


class OwnRecipe(PluginConfig):
    """How an agent that is not shipped comes into an image."""

    name: str = Field(description="The agent and its version, such as my-agent-1.2.")
    script: str = Field(
        description=f"Shell script that installs it into the folder $ALE_AGENT ({AGENTS}/NAME): run once, as root, with a network."
    )
    check: str = Field(description="Shell command that succeeds where it is there.")
    base: str = Field("an image that its script fits", description="What it asks of an image, for people.")
    hosts: tuple[str, ...] = Field(
        (), description="Hosts that it reaches, host:port, for sandboxes that let only named ones through."
    )


class CommandLineAgentConfig(CommandAgentConfig):
    """Settings of the scaffold `cli`; give `agent` or `command`."""

    agent: str | None = Field(
        None, description=f"A shipped agent: {', '.join(SHIPPED)}. The other keys win over what it brings."
    )
    command: str | tuple[str, ...] | None = Field(
        None, description=f"How the agent is started: a shell command, or a list of words. {NAMES}"
    )
    options: tuple[str, ...] = Field((), description=f"With `agent`: more words at the end of its command. {NAMES}")
    env: dict[str, str] = Field(default_factory=dict, description=f"Its environment. {NAMES}")
    files: dict[str, str] = Field(
        default_factory=dict,
        description=f"Settings files, path -> text, written before each episode; ~/ is the home folder. {NAMES} In JSON, TOML "
        "and YAML put them between double quotes.",
    )
    stdin: str = Field("", description=f"Its standard input. {NAMES}")
    dialect: Dialect | None = Field(
        None,
        description="Which API it speaks, chat, responses or anthropic: says what $ALE_BASE_URL is. null: the agent's own, or "
        "chat.",
    )
    recipe: OwnRecipe | None = Field(
        None, description="How it comes into the image; null: the agent's own, or images have it."
    )

    @model_validator(mode="after")
    def _something_to_run(self) -> CommandLineAgentConfig:
        if self.agent is None and not self.command:
            raise ValueError(f"give 'agent', one of {', '.join(SHIPPED)}, or a 'command' of your own")
        if self.agent is not None and self.agent not in SHIPPED:
            raise ValueError(
                f"there is no agent '{self.agent}'; those that are shipped are {', '.join(SHIPPED)}. Others are described by "
                "'command', 'env' and 'files'"
            )
        if self.options and (self.agent is None or self.command):
            raise ValueError("'options' goes with a shipped agent's command; write the words into your own 'command'")
        return self

    @property
    def shipped(self) -> Shipped:
        """What is known of the agent."""
        return SHIPPED[self.agent] if self.agent is not None else Shipped((), None)

    @property
    def own_recipe(self) -> Recipe | None:
        """The run file's, or the shipped agent's; None where images have it."""
        if not self.install:
            return None
        own = self.recipe
        return Recipe(**own.model_dump()) if own is not None else self.shipped.recipe


class CommandLineAgent(CommandAgent):
    """Runs the command to its end, once an episode."""

    Config = CommandLineAgentConfig
    config: CommandLineAgentConfig

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self.dialect = self.config.dialect or self.config.shipped.dialect

    def launch(self, line: Line) -> Launch:
        """See `CommandAgent.launch`."""
        own, shipped = self.config, self.config.shipped
        env = {name: line.fill(value) for name, value in {**shipped.env, **own.env}.items()}
        files = {path: line.fill_file(path, text) for path, text in {**shipped.files, **own.files}.items()}
        return Launch(line.command(own.command or (*shipped.command, *own.options)), env, line.fill(own.stdin), files)
