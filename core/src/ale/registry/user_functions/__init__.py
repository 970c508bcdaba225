"""Python functions that a run file names: loaded, called with the arguments that they name, within a time limit."""

from ale.registry.user_functions.calling import FunctionFailed, call_function, pick_arguments
from ale.registry.user_functions.loading import FunctionName, FunctionSetting, UserFunction, load_function

__all__ = [
    "FunctionFailed",
    "FunctionName",
    "FunctionSetting",
    "UserFunction",
    "call_function",
    "load_function",
    "pick_arguments",
]
