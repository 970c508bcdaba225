"""A command-line agent in thirty lines, for the kit: it asks over HTTP, runs what it is told to, and goes on until no
call comes."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

SHELL = {
    "name": "shell",
    "description": "Run a command.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


def asked(messages: list[dict[str, object]]) -> dict[str, object]:
    """The model's next message."""
    body = {"model": "policy", "messages": messages, "tools": [{"type": "function", "function": SHELL}]}
    headers = {"authorization": f"Bearer {os.environ['ALE_API_KEY']}", "content-type": "application/json"}
    url = f"{os.environ['ALE_BASE_URL']}/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return dict(json.load(answer)["choices"][0]["message"])


def done(call: dict[str, dict[str, str]]) -> str:
    """What a call came to."""
    try:
        command = json.loads(call["function"]["arguments"])["command"]
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout
    except (KeyError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


history: list[dict[str, object]] = [{"role": "user", "content": os.environ["ALE_TASK"]}]
try:
    while calls := history.append(asked(history)) or history[-1].get("tool_calls"):
        history += [{"role": "tool", "tool_call_id": c["id"], "content": done(c)} for c in calls]  # type: ignore[attr-defined]
except urllib.error.HTTPError as error:
    sys.exit(f"{error}: {error.read()!r}")
