"""Python functions that a run file names: loaded, called with the arguments that they name, within a time limit."""

from ale.registry.user_functions.calling import FunctionFailed, call_function, pick_arguments
from ale.registry.user_functions.in_memory import MEMORY, is_importable, name_function
from ale.registry.user_functions.json_schema import describe_function
from ale.registry.user_functions.loading import FunctionName, FunctionSetting, UserFunction, load_function

__all__ = [
    "MEMORY",
    "FunctionFailed",
    "FunctionName",
    "FunctionSetting",
    "UserFunction",
    "call_function",
    "describe_function",
    "is_importable",
    "load_function",
    "name_function",
    "pick_arguments",
]
