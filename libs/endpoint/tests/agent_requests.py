"""What real agents send, in shape: key names, types, nesting and sizes as they were seen; the words are ours.

`mini` is mini-swe-agent 2.4.6, `openhands` the OpenHands SDK 1.58.0, `qwen_code` qwen-code 0.24.4. Each gives the
request that follows `steps` calls of its tool that runs commands, so that `mini(1)` extends `mini(0)`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Body = dict[str, Any]
TASK = "Write plum into ans.txt."
COMMAND = "echo plum > ans.txt"


def words(chars: int) -> str:
    """A text of this length."""
    return ("lorem ipsum " * (chars // 12 + 1))[:chars]


def tool(name: str, described: int, required: tuple[str, ...], **properties: Mapping[str, Any]) -> Body:
    """A function as chat completions have it."""
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {
        "type": "function",
        "function": {"name": name, "description": words(described), "parameters": parameters},
    }


def of(kind: str, described: int, **more: Any) -> Body:
    """A property of a function."""
    return {"type": kind, "description": words(described), **more}


def parts(*texts: str) -> list[Body]:
    """Content as a list of parts."""
    return [{"type": "text", "text": text} for text in texts]


def arguments(**more: Any) -> str:
    """Arguments of a call, as JSON in a text."""
    return json.dumps({"command": COMMAND, **more})


def mini(steps: int) -> Body:
    """Plain texts, no content beside a call, keys of a call in another order, and what litellm adds to it."""
    messages: list[Body] = [
        {"role": "system", "content": words(62)},
        {"role": "user", "content": f"{words(2800)} {TASK}"},
    ]
    for step in range(steps):
        call = {"function": {"arguments": arguments(), "name": "bash"}, "id": f"call_{step}_0", "type": "function"}
        messages += [
            {"role": "assistant", "tool_calls": [call], "provider_specific_fields": {"refusal": None}},
            {
                "content": json.dumps({"returncode": 0, "output": ""}, indent=2),
                "tool_call_id": call["id"],
                "role": "tool",
            },
        ]
    return {
        "model": "policy",
        "messages": messages,
        "tools": [tool("bash", 22, ("command",), command=of("string", 27))],
    }


def openhands(steps: int) -> Body:
    """Content in parts everywhere, no content beside a call, answers of tools with their names; two keys of one API's
    own."""
    risk = of("string", 156, enum=["UNKNOWN", "LOW", "MEDIUM", "HIGH"])
    said = {"security_risk": risk, "summary": of("string", 178)}
    tools = [
        tool(
            "terminal",
            1763,
            ("command",),
            **said,
            command=of("string", 520),
            is_input=of("boolean", 133),
            timeout=of("number", 443),
            reset=of("boolean", 238),
        ),
        tool(
            "file_editor",
            2600,
            ("command", "path"),
            **said,
            command=of("string", 120, enum=["view", "create"]),
            path=of("string", 40),
            file_text=of("string", 90),
            old_str=of("string", 90),
            new_str=of("string", 90),
            insert_line=of("integer", 90),
            view_range=of("array", 200, items={"type": "integer"}),
        ),
        tool("finish", 600, ("message",), summary=of("string", 178), message=of("string", 45)),
        tool("think", 700, ("thought",), summary=of("string", 178), thought=of("string", 25)),
    ]
    messages: list[Body] = [
        {"content": parts(words(15228)), "role": "system"},
        {"content": parts(TASK), "role": "user"},
    ]
    for step in range(steps):
        made = {"name": "terminal", "arguments": arguments(security_risk="LOW", summary="x")}
        call = {"id": f"call_{step}_0", "type": "function", "function": made}
        messages += [
            {"role": "assistant", "tool_calls": [call]},
            {"content": parts(words(134)), "role": "tool", "tool_call_id": call["id"], "name": "terminal"},
        ]
    return {
        "messages": messages,
        "model": "policy",
        "prompt_cache_key": "00000000-0000-4000-8000-000000000000",
        "reasoning_effort": "high",
        "tools": tools,
    }


def qwen_code(steps: int) -> Body:
    """Streamed; the task is the last of five parts, `content: null` beside a call, fourteen tools with `oneOf` and
    nested objects."""
    agent = tool(
        "agent",
        10716,
        ("description", "prompt"),
        description=of("string", 42),
        prompt=of("string", 34),
        fork_turns={
            "oneOf": [{"type": "string", "const": "all"}, {"type": "integer", "minimum": 0}],
            "description": "x",
        },
        fork_tools=of("array", 532, items={"type": "string", "minLength": 1}),
        run_in_background=of("boolean", 774, default=True),
    )
    shell = tool(
        "run_shell_command",
        4000,
        ("command", "is_background"),
        command=of("string", 40),
        is_background=of("boolean", 400),
        timeout=of("number", 60),
        description=of("string", 150),
        directory=of("string", 150),
    )
    others = [
        tool(name, 1500, ("path",), path=of("string", 120))
        for name in (
            "edit",
            "get_goal",
            "glob",
            "grep_search",
            "list_agents",
            "notebook_edit",
            "read_file",
            "skill",
            "tool_call",
            "tool_search",
            "update_goal",
            "write_file",
        )
    ]
    told = parts(words(6099), words(330), words(2625), words(224), TASK)
    messages: list[Body] = [{"role": "system", "content": words(26873)}, {"role": "user", "content": told}]
    for step in range(steps):
        made = {"name": "run_shell_command", "arguments": arguments(is_background=False)}
        call = {"id": f"call_{step}_0", "type": "function", "function": made}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": parts(words(134))},
        ]
    return {
        "model": "policy",
        "messages": messages,
        "max_tokens": 32000,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [agent, *others[:8], shell, *others[8:]],
    }


AGENTS: Mapping[str, Callable[[int], Body]] = {"mini": mini, "openhands": openhands, "qwen-code": qwen_code}
