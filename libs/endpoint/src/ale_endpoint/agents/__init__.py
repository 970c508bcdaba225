"""Scaffolds around agents that are separate programs in the sandbox."""

from ale_endpoint.agents.agent_variables import AgentVariables
from ale_endpoint.agents.command_agent import CommandAgent, CommandAgentConfig, Launch
from ale_endpoint.agents.install_recipes import Recipe, node_recipe, python_recipe

__all__ = ["AgentVariables", "CommandAgent", "CommandAgentConfig", "Launch", "Recipe", "node_recipe", "python_recipe"]
