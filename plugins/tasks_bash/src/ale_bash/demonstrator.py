"""Turns a demonstration (a generator of calls) into a responder that answers in the model's place."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ale.messages import Message, ToolCall, ToolSpec
from ale_bash.family import Call, Demonstration, shell


class Demonstrator:
    """One episode's demonstrator: each answer of the sandbox goes to the generator, its next call to the agent.

    When the generator has ended, the call is `finish`; asked once more, it hands over to the policy.
    """

    def __init__(self, steps: Demonstration) -> None:
        self._steps = steps
        self._calls = 0
        self._finished = False

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message | None:
        """The next call, in view of the last answer."""
        if self._finished:
            return None
        try:
            call = next(self._steps) if self._calls == 0 else self._steps.send(messages[-1].content)
        except StopIteration:
            call = Call("finish", {})
            self._finished = True
        self._calls += 1
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        return Message("assistant", "", (ToolCall(f"call_{self._calls - 1}_0", call.name, arguments),))


def run_solution(script: str) -> Demonstration:
    """A demonstration in one call: the reference solution."""
    yield shell(script)
