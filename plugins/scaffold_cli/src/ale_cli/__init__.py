"""A scaffold for any command-line agent that uses OpenAI's or Anthropic's API."""

from ale_cli.scaffold import CommandLineAgent

__all__ = ["CommandLineAgent"]
