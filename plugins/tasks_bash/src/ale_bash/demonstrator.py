"""Turns a demonstration (a generator of calls) into a responder that answers in the model's place."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ale.messages import Message, ToolCall, ToolSpec
from ale.specs.start import Reply
from ale_bash.family import Demonstration, DemonstratorCall, shell_call


class Demonstrator:
    """One episode's demonstrator: it sends each answer of the sandbox to the generator, and the next call to the agent.

    When the generator has ended, the demonstrator calls `finish`, and after that hands over to the policy. Where the
    agent has no tool of a call's name, the call becomes a command for a tool that runs commands, and `finish` becomes a
    sentence."""

    def __init__(self, steps: Demonstration) -> None:
        self._steps = steps
        self._calls = 0
        self._finished = False

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply | None:
        """The next call, made from the sandbox's last answer."""
        if self._finished:
            return None
        try:
            call = next(self._steps) if self._calls == 0 else self._steps.send(messages[-1].content)
        except StopIteration:
            call = DemonstratorCall("finish", {})
            self._finished = True
        self._calls += 1
        fitted = fit_to_tools(call, tools)
        if fitted is None:
            return Reply(Message("assistant", "It is done."))
        arguments = json.dumps(fitted.arguments, ensure_ascii=False)
        return Reply(Message("assistant", "", (ToolCall(f"call_{self._calls - 1}_0", fitted.name, arguments),)))


def fit_to_tools(call: DemonstratorCall, tools: Sequence[ToolSpec]) -> DemonstratorCall | None:
    """The call, rewritten for the agent's tools; None for `finish` where the agent has no tool for it."""
    if not tools or any(tool.name == call.name for tool in tools):
        return call
    if call.name == "finish":
        return None
    runs = [tool for tool in tools if "command" in _required_arguments(tool)]
    if not runs:
        return call
    path = shlex.quote(call.arguments.get("path", ""))
    command = {
        "shell": call.arguments.get("command", ""),
        "read_file": f"cat {path}",
        "write_file": f"echo {shlex.quote(call.arguments.get('content', ''))} > {path}",
    }[call.name]
    tool = min(runs, key=lambda tool: len(_required_arguments(tool)))
    others = {
        name: _default_argument(tool.parameters["properties"][name])
        for name in _required_arguments(tool)
        if name != "command"
    }
    return DemonstratorCall(tool.name, {"command": command, **others})


def _required_arguments(tool: ToolSpec) -> Sequence[str]:
    return tuple(tool.parameters.get("required") or ())


def _default_argument(schema: Mapping[str, Any]) -> Any:
    """A value for a required argument that the demonstrator's call does not have."""
    return schema.get("enum", [{"boolean": False, "integer": 0, "number": 0}.get(str(schema.get("type")), "-")])[0]


def run_solution(script: str) -> Demonstration:
    """A demonstration in one call: the reference solution."""
    yield shell_call(script)
