"""The scaffold `sweagent`: mini-swe-agent's command `mini`, with the run's policy as its model."""

from __future__ import annotations

import json

from pydantic import Field

from ale.specs.sandbox import ExecResult, Sandbox
from ale_endpoint.agents import AgentVariables, CommandAgent, CommandAgentConfig, Launch, Recipe, python_recipe

# The newest litellm cannot be imported together with it, and has no advantage.
RECIPE = python_recipe("mini-swe-agent-2.4.6", ("mini-swe-agent==2.4.6", "litellm==1.81.10"), "mini", minor=10)
RECORD = "/tmp/ale-mini-swe-agent.json"
ENVIRONMENT = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3",
    # Without this, it would wait ten seconds for a list of prices.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_COLOR": "1",
    "TERM": "dumb",
}
ENDS = {"Submitted": "finish", "LimitsExceeded": "max_turns", "TimeExceeded": "agent_timeout"}
"""How its record names the ends of an episode. Its cost limit, also `LimitsExceeded`, is always off."""


class SweAgentConfig(CommandAgentConfig):
    """Settings of the scaffold `sweagent`."""

    config: tuple[str, ...] = Field(
        ("mini.yaml",),
        min_length=1,
        description="The agent's settings, as its option -c takes them: names of its own files, paths, or key=value.",
    )
    step_limit: int = Field(
        0, ge=0, description="The agent's own limit of model calls; 0: only rollout.max_calls applies."
    )

    @property
    def own_recipe(self) -> Recipe | None:
        """Return the recipe: mini-swe-agent in its own virtual environment."""
        return RECIPE if self.install else None


class SweAgent(CommandAgent):
    """Runs `mini` once per episode."""

    Config = SweAgentConfig
    config: SweAgentConfig

    def launch(self, variables: AgentVariables) -> Launch:
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
            f"openai/{variables.model}",
            *options,
        ]
        env = {**ENVIRONMENT, "OPENAI_API_BASE": variables.base_url, "OPENAI_API_KEY": variables.api_key}
        return Launch(variables.command([*words, "--output", RECORD, "--task", "$ALE_TASK"]), env)

    async def end_reason(self, result: ExecResult, sandbox: Sandbox) -> str:
        """Read the end from the agent's record of the episode, because its exit code is 0 even if it gave up."""
        try:
            record = json.loads(await sandbox.download(RECORD, max_bytes=1 << 26))
            ended = ENDS[record["info"]["exit_status"]]
        except (OSError, ValueError, KeyError, TypeError):
            return "agent_error"
        return ended if result.exit_code == 0 else "agent_error"
