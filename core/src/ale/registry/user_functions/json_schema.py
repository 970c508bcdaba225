"""The description of a Python function as a tool, for a chat template."""

from __future__ import annotations

from typing import Any

from ale.errors import ConfigError
from ale.registry.user_functions.loading import UserFunction
from ale.registry.validation import one_line_error


def describe_function(function: UserFunction) -> dict[str, Any]:
    """Return a function as a tool in OpenAI's form, made from its signature and docstring as transformers makes it for
    `apply_chat_template`. Raises `ConfigError` if it has no docstring, or a parameter no type or description."""
    from transformers.utils.chat_template_utils import get_json_schema  # it takes a second to import

    try:
        described: dict[str, Any] = get_json_schema(function.function)
    except Exception as error:  # hints may name anything, and choices in a docstring may be no JSON
        fault = one_line_error(error).rstrip("!")
        raise ConfigError(
            f"no tool can be made of {function.where}: {fault}. It needs a docstring with a line for each parameter "
            "under 'Args:', and type hints that JSON has, such as int, str and list[str]."
        ) from None
    return described
