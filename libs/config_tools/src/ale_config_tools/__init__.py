"""This package has the commands `ale config show`, `ale config validate` and `ale config describe`."""

from ale_config_tools.describe_command import describe
from ale_config_tools.keys import describe_keys
from ale_config_tools.run_file_commands import show, validate

__all__ = ["describe", "describe_keys", "show", "validate"]
