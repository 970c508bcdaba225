"""Any command-line agent that speaks OpenAI's or Anthropic's API."""

from ale_cli.scaffold import CommandLineAgent

__all__ = ["CommandLineAgent"]
