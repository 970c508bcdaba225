"""The scaffold `openhands`: a conversation of the OpenHands SDK, started by `runner.py`, with the run's policy as its model."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Literal

from pydantic import Field

from ale.specs.sandbox import ExecResult, Sandbox
from ale.specs.scaffold import Recipe
from ale_agents import CommandAgent, CommandAgentConfig, Launch, Line, python_recipe

VERSION = "1.58.0"
RECIPE = python_recipe(
    f"openhands-{VERSION}", (f"openhands-sdk=={VERSION}", f"openhands-tools=={VERSION}"), "python", minor=12
)
ENVIRONMENT = {
    "OPENHANDS_SUPPRESS_BANNER": "1",
    # Else it would wait for a list of prices.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_COLOR": "1",
    "TERM": "dumb",
}

TURNS_SPENT = 3
"""The exit code by which `runner.py` says so."""

OpenHandsTool = Literal["terminal", "file_editor", "task_tracker"]


class OpenHandsConfig(CommandAgentConfig):
    """Settings of the scaffold `openhands`."""

    tools: tuple[OpenHandsTool, ...] = Field(
        ("terminal", "file_editor"), description="Its tools, beside `finish` and `think`, which it always has."
    )
    system_prompt: str | None = Field(None, description="Its system prompt; null: its own.")
    max_iterations: int = Field(500, gt=0, description="Its own limit of turns.")
    python: str = Field(
        "python3", description="With install: false, the Python that has openhands-sdk and openhands-tools."
    )

    @property
    def own_recipe(self) -> Recipe | None:
        """The SDK and its tools in a virtual environment of their own."""
        return RECIPE if self.install else None


class OpenHands(CommandAgent):
    """Runs a conversation, once an episode."""

    Config = OpenHandsConfig
    config: OpenHandsConfig

    def launch(self, line: Line) -> Launch:
        """See `CommandAgent.launch`."""
        wanted = {
            "tools": self.config.tools, "system_prompt": self.config.system_prompt,
            "max_iterations": self.config.max_iterations,
        }  # fmt: skip
        python = f"{RECIPE.place}/bin/python" if self.config.install else self.config.python
        runner = files("ale_openhands").joinpath("runner.py").read_text(encoding="utf-8")
        return Launch(line.command([python, "-"]), {**ENVIRONMENT, "ALE_OPENHANDS": json.dumps(wanted)}, runner)

    async def ended(self, result: ExecResult, sandbox: Sandbox) -> str:
        """See `CommandAgent.ended`."""
        return "max_turns" if result.exit_code == TURNS_SPENT else await super().ended(result, sandbox)
