"""The scaffold `openhands`: a conversation of the OpenHands SDK, started by `runner.py`, with the run's policy as its
model."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Literal

from pydantic import Field

from ale.specs.sandbox import ExecResult, Sandbox
from ale_endpoint.agents import AgentVariables, CommandAgent, CommandAgentConfig, Launch, Recipe, python_recipe

VERSION = "1.58.0"
RECIPE = python_recipe(
    f"openhands-{VERSION}", (f"openhands-sdk=={VERSION}", f"openhands-tools=={VERSION}"), "python", minor=12
)
ENVIRONMENT = {
    "OPENHANDS_SUPPRESS_BANNER": "1",
    # Without this, it would wait to download a list of prices.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_COLOR": "1",
    "TERM": "dumb",
}

TURNS_SPENT = 3
"""The exit code with which `runner.py` reports that the iterations are used up."""

OpenHandsTool = Literal["terminal", "file_editor", "task_tracker"]


class OpenHandsConfig(CommandAgentConfig):
    """Settings of the scaffold `openhands`."""

    tools: tuple[OpenHandsTool, ...] = Field(
        ("terminal", "file_editor"), description="The agent's tools. It always has `finish` and `think` as well."
    )
    system_prompt: str | None = Field(None, description="The agent's system prompt; null: OpenHands' own.")
    max_iterations: int = Field(500, gt=0, description="The agent's own limit of turns.")
    python: str = Field(
        "python3", description="If install is false: the Python that has openhands-sdk and openhands-tools."
    )

    @property
    def own_recipe(self) -> Recipe | None:
        """Return the recipe: the SDK and its tools in their own virtual environment."""
        return RECIPE if self.install else None


class OpenHands(CommandAgent):
    """Runs one conversation per episode."""

    Config = OpenHandsConfig
    config: OpenHandsConfig

    def launch(self, variables: AgentVariables) -> Launch:
        wanted = {
            "tools": self.config.tools,
            "system_prompt": self.config.system_prompt,
            "max_iterations": self.config.max_iterations,
        }
        python = f"{RECIPE.place}/bin/python" if self.config.install else self.config.python
        runner = files("ale_openhands").joinpath("runner.py").read_text(encoding="utf-8")
        return Launch(variables.command([python, "-"]), {**ENVIRONMENT, "ALE_OPENHANDS": json.dumps(wanted)}, runner)

    async def end_reason(self, result: ExecResult, sandbox: Sandbox) -> str:
        return "max_turns" if result.exit_code == TURNS_SPENT else await super().end_reason(result, sandbox)
