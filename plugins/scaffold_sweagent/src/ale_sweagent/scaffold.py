"""The scaffold `sweagent`: mini-swe-agent's command `mini`, with the run's policy as its model."""

from __future__ import annotations

import json

from pydantic import Field

from ale.specs.sandbox import ExecResult, Sandbox
from ale.specs.scaffold import Recipe
from ale_agents import CommandAgent, CommandAgentConfig, Launch, Line, python_recipe

# The newest litellm does not import beside it, and would be no better here.
RECIPE = python_recipe("mini-swe-agent-2.4.6", ("mini-swe-agent==2.4.6", "litellm==1.81.10"), "mini", minor=10)
RECORD = "/tmp/ale-mini-swe-agent.json"
ENVIRONMENT = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3",
    # Else it would wait ten seconds for a list of prices.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_COLOR": "1",
    "TERM": "dumb",
}
ENDS = {"Submitted": "finish", "LimitsExceeded": "max_turns", "TimeExceeded": "agent_timeout"}
"""What its record calls an end. Its limit of costs would be `LimitsExceeded` too, and is always off."""


class SweAgentConfig(CommandAgentConfig):
    """Settings of the scaffold `sweagent`."""

    config: tuple[str, ...] = Field(
        ("mini.yaml",),
        min_length=1,
        description="Its own settings, as its option -c takes them: names of its files, paths, or key=value.",
    )
    step_limit: int = Field(0, ge=0, description="Its own limit of model calls; 0: rollout.max_calls alone.")

    @property
    def own_recipe(self) -> Recipe | None:
        """mini-swe-agent in a virtual environment of its own."""
        return RECIPE if self.install else None


class SweAgent(CommandAgent):
    """Runs `mini`, once an episode."""

    Config = SweAgentConfig
    config: SweAgentConfig

    def launch(self, line: Line) -> Launch:
        """See `CommandAgent.launch`."""
        settings = [*self.config.config, f"agent.step_limit={self.config.step_limit}"]
        options = [word for setting in settings for word in ("-c", setting)]
        program = f"{RECIPE.place}/bin/mini" if self.config.install else "mini"
        words = [
            program,
            "--yolo",
            "--exit-immediately",
            "--cost-limit",
            "0",
            "--model",
            f"openai/{line.model}",
            *options,
        ]
        env = {**ENVIRONMENT, "OPENAI_API_BASE": line.base_url, "OPENAI_API_KEY": line.api_key}
        return Launch(line.command([*words, "--output", RECORD, "--task", "$ALE_TASK"]), env)

    async def ended(self, result: ExecResult, sandbox: Sandbox) -> str:
        """Its exit code is 0 also where it gave up; its own record of the episode says which it was."""
        try:
            record = json.loads(await sandbox.download(RECORD, max_bytes=1 << 26))
            ended = ENDS[record["info"]["exit_status"]]
        except (OSError, ValueError, KeyError, TypeError):
            return "agent_error"
        return ended if result.exit_code == 0 else "agent_error"
