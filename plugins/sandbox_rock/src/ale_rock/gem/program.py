"""The program that plays an environment inside a sandbox. It needs only a Python with the environment's library (gem).

`program.py serve FOLDER ENV_ID SETTINGS` makes the environment and answers requests at a Unix socket in FOLDER, one
after the other. `program.py ask FOLDER SECONDS` sends the JSON on its standard input there and prints the answer: that
is how the service, which can only run commands here, reaches the environment. An answer is `{"result": ...}` or
`{"error": ...}`.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time
import traceback
from typing import Any, NoReturn

SOCKET = "socket"


def serve(folder: str, env_id: str, settings: dict[str, Any]) -> NoReturn:
    """Answer requests until the sandbox ends."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(os.path.join(folder, SOCKET))
    listener.listen(8)
    env = error = None
    try:
        env = make(env_id, settings)
    except Exception as fault:
        error = describe(fault)
    while True:
        connection, _ = listener.accept()
        try:
            with connection, connection.makefile("rwb") as stream:
                request = json.loads(stream.readline())
                answer = {"error": error} if error else answer_to(env, request)
                stream.write(json.dumps(answer, default=plain).encode() + b"\n")
        except OSError:  # the asking command was ended at its time limit
            error = error or "an earlier request was not answered in time, so nobody knows its state; make it again"


def make(env_id: str, settings: dict[str, Any]) -> Any:
    """Make an environment: one of gem's, or else the class that `module:Class` names."""
    try:
        gem = importlib.import_module("gem")
        importlib.import_module("gem.envs")
        known = importlib.import_module("gem.envs.registration").ENV_REGISTRY
    except ImportError:
        gem, known = None, {}
    module, _, name = env_id.partition(":")
    if env_id not in known and name.isidentifier():
        return getattr(importlib.import_module(module), name)(**settings)
    if gem is None:
        raise ImportError(f"gem, of which {env_id} is an environment, is not installed in this sandbox (gem-llm)")
    return gem.make(env_id, **settings)


def answer_to(env: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request."""
    try:
        if request["op"] == "made":
            return {"result": check_agents(env, request["agents"])}
        if request["op"] == "reset":
            observation, info = env.reset(seed=request["seed"])
            return {"result": {"observation": observation, "info": info}}
        observation, reward, terminated, truncated, info = env.step(request["action"])
        step = {"observation": observation, "reward": of_each(float, reward), "info": info}
        return {"result": {**step, "terminated": of_each(bool, terminated), "truncated": of_each(bool, truncated)}}
    except Exception as fault:
        return {"error": describe(fault)}


def check_agents(env: Any, agents: list[str]) -> bool:
    """Refuse an environment of other agents than these, if any are named."""
    own = list(getattr(env, "possible_agents", ()))
    if agents and set(own) != set(agents):
        raise ValueError(f"its agents are {own}, not {agents}; leave `agents` out, or give each a sandbox of its own")
    return True


def of_each(kind: type, value: Any) -> Any:
    """Return a value as float or bool; in an environment of several agents, that of each."""
    return {agent: kind(each) for agent, each in value.items()} if isinstance(value, dict) else kind(value)


def describe(fault: Exception) -> str:
    """Return an exception as a sentence, with the place where it was raised."""
    last = traceback.extract_tb(fault.__traceback__)[-1]
    return f"{type(fault).__name__}: {fault} ({last.filename}, line {last.lineno})"


def plain(value: Any) -> Any:
    """Return an array or a number of numpy as Python's own; anything else as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def ask(folder: str, seconds: float) -> None:
    """Pass a request on, and print the answer. The program may just be starting."""
    until = time.monotonic() + seconds
    request = sys.stdin.buffer.read()
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(os.path.join(folder, SOCKET))
            break
        except OSError:
            if time.monotonic() > until:
                sys.exit("the environment's program does not run")
            time.sleep(0.02)
    with connection, connection.makefile("rwb") as stream:
        stream.write(request + b"\n")
        stream.flush()
        answer = stream.readline()
    if not answer.endswith(b"\n"):
        sys.exit("the environment's program has ended")
    sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
    else:
        ask(sys.argv[2], float(sys.argv[3]))
