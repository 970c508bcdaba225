"""The scaffold `cli`: a command-line agent that the run file describes, or one of the shipped ones."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from ale.specs.driver import DriverContext, PluginConfig
from ale_cli.shipped_agents import SHIPPED, ShippedAgent
from ale_endpoint.agents import AgentVariables, CommandAgent, CommandAgentConfig, Launch
from ale_endpoint.agents.agent_variables import Dialect
from ale_endpoint.agents.install_recipes import AGENTS, Recipe

NAMES = (
    "$ALE_TASK, $ALE_BASE_URL, $ALE_API_KEY, $ALE_MODEL, $ALE_MAX_CONTEXT and $ALE_MAX_TOKENS are replaced by the "
    "episode's values."
)


class OwnRecipe(PluginConfig):
    """How to install an agent that is not a shipped one into an image."""

    name: str = Field(description="Name and version of the agent, such as my-agent-1.2.")
    script: str = Field(
        description=f"Shell script that installs it into the folder $ALE_AGENT ({AGENTS}/NAME): run once, as root, "
        "with a network."
    )
    check: str = Field(description="Shell command that succeeds if the agent is installed.")
    base: str = Field("an image that its script fits", description="What the image must have, for error messages.")
    hosts: tuple[str, ...] = Field(
        (), description="Hosts that the script needs, as host:port, for sandboxes that allow only named hosts."
    )


class CommandLineAgentConfig(CommandAgentConfig):
    """Settings of the scaffold `cli`; give `agent` or `command`."""

    agent: str | None = Field(
        None, description=f"A shipped agent: {', '.join(SHIPPED)}. Other keys override its settings."
    )
    command: str | tuple[str, ...] | None = Field(
        None, description=f"Starts the agent: a shell command, or a list of words. {NAMES}"
    )
    options: tuple[str, ...] = Field((), description=f"With `agent`: words to append to its command. {NAMES}")
    env: dict[str, str] = Field(default_factory=dict, description=f"Its environment. {NAMES}")
    files: dict[str, str] = Field(
        default_factory=dict,
        description=f"Settings files, path -> text, written before each episode; ~/ is the home folder. {NAMES} In "
        "JSON, TOML and YAML put them between double quotes.",
    )
    stdin: str = Field("", description=f"Its standard input. {NAMES}")
    dialect: Dialect | None = Field(
        None,
        description=(
            "API that the agent uses: chat, responses or anthropic. It decides $ALE_BASE_URL. null: the shipped "
            "agent's API, or chat."
        ),
    )
    recipe: OwnRecipe | None = Field(
        None,
        description=(
            "How to install the agent into images; null: by the shipped agent's recipe, or not at all, if images "
            "already have it."
        ),
    )

    @model_validator(mode="after")
    def _something_to_run(self) -> CommandLineAgentConfig:
        if self.agent is None and not self.command:
            raise ValueError(f"give 'agent', one of {', '.join(SHIPPED)}, or a 'command' of your own")
        if self.agent is not None and self.agent not in SHIPPED:
            raise ValueError(
                f"there is no agent '{self.agent}'; the shipped ones are {', '.join(SHIPPED)}. Other agents are "
                "described by 'command', 'env' and 'files'"
            )
        if self.options and (self.agent is None or self.command):
            raise ValueError("'options' goes with a shipped agent's command; write the words into your own 'command'")
        return self

    @property
    def shipped(self) -> ShippedAgent:
        """The shipped agent's command and settings; empty if the run file gives a command."""
        return SHIPPED[self.agent] if self.agent is not None else ShippedAgent((), None)

    @property
    def own_recipe(self) -> Recipe | None:
        """Return the run file's recipe, or the shipped agent's; None if images already have the agent."""
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

    def launch(self, variables: AgentVariables) -> Launch:
        own, shipped = self.config, self.config.shipped
        env = {name: variables.fill(value) for name, value in {**shipped.env, **own.env}.items()}
        files = {path: variables.fill_file(path, text) for path, text in {**shipped.files, **own.files}.items()}
        return Launch(
            variables.command(own.command or (*shipped.command, *own.options)), env, variables.fill(own.stdin), files
        )
