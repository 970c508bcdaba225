"""This package has the command `ale config describe`."""

from ale_config_tools.describe_command import describe
from ale_config_tools.keys import describe_keys

__all__ = ["describe", "describe_keys"]
