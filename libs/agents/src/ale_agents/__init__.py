"""Scaffolds around agents that are programs of their own in the sandbox."""

from ale_agents.agent import CommandAgent, CommandAgentConfig, Launch
from ale_agents.line import Line
from ale_agents.recipes import node_recipe, python_recipe

__all__ = ["CommandAgent", "CommandAgentConfig", "Launch", "Line", "node_recipe", "python_recipe"]
