"""`ale rock status | warm | shell`, and what the other commands of a service's users share."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ale.cli.plugins_command import print_table
from ale.errors import ConfigError
from ale_rock.client.service_client import ALE, ANSWER_S, Missing, ServiceClient, check_url

T = TypeVar("T")
WARM_S = 3600.0
"""A large image takes long to pull."""
LATE = 124
"""The exit code of a command that took too long."""
EXIT = re.compile(r"\s*exit(?:\s+(\d{1,3}))?\s*")


def show_status(url: str, token_env: str | None, as_json: bool) -> None:
    """Print the workers, the queue and the sandboxes."""

    async def look(client: ServiceClient) -> dict[str, Any]:
        status = await client.json("GET", f"{ALE}/status")
        found = await client.json("GET", f"{ALE}/sandboxes")
        return {**status, "counts": status["sandboxes"], "sandboxes": found["sandboxes"]}

    status = ask_service(url, token_env, look)
    if as_json:
        print(json.dumps(status, indent=2))
        return
    workers = [
        (
            each["name"],
            each["provider"],
            "alive" if each["alive"] else "lost",
            str(each["sandboxes"]),
            str(each["warm"]),
            f"{each['cpus']['promised']:g} of {each['cpus']['limit']:g}",
            f"{_gib(each['memory_bytes']['promised'])} of {_gib(each['memory_bytes']['limit'])}",
            each["url"],
        )
        for each in status["workers"]
    ]
    print_table([("WORKER", "PROVIDER", "STATE", "SANDBOXES", "WARM", "CPUS", "MEMORY", "URL"), *workers])
    print(f"\n{status['queue']['waiting']} wait in the queue; the database: {status['database']}\n")
    rows = [
        (each["id"], each["state"], each["worker"] or "-", each["user"] or "-", each["image"] or "-")
        for each in status["sandboxes"]
    ]
    print_table([("SANDBOX", "STATE", "WORKER", "USER", "IMAGE"), *rows])


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}G"


def warm_up(url: str, token_env: str | None, image: str) -> None:
    """Bring an image to the workers and print how that went on each. Raises `SandboxError` if it failed on all."""

    async def ask(client: ServiceClient) -> Any:
        return await client.rock("POST", "/warmup/tasks", {"image": image}, WARM_S)

    rows = [
        (each["worker"], each["problem"] or f"ready after {each['seconds']:.1f} s")
        for each in ask_service(url, token_env, ask)["workers"]
    ]
    print_table([("WORKER", "IMAGE"), *rows])


def shell(sandbox_id: str, url: str, token_env: str | None, timeout_s: float) -> int:
    """Run line after line in a session of the sandbox; return the last exit code. Ctrl-C ends only the running line."""
    with asyncio.Runner() as runner:
        client = _client(url, token_env)
        session = {"sandbox_id": sandbox_id, "session": f"ale-{secrets.token_hex(4)}"}
        code = 0
        try:
            runner.run(client.rock("POST", "/create_session", {**session, "session_type": "bash"}))
            for line in _lines(f"{sandbox_id}$ "):
                left = EXIT.fullmatch(line)
                if left is not None:
                    code = int(left[1]) % 256 if left[1] else code
                    break
                asked = {**session, "command": line, "check": "silent", "timeout": timeout_s}
                try:
                    done = runner.run(client.rock("POST", "/run_in_session", asked, timeout_s + ANSWER_S))
                except KeyboardInterrupt:  # the service ends the command, whose request was given up
                    if not sys.stdin.isatty():
                        raise
                    code = 130
                    print(file=sys.stderr)
                    continue
                code = done["exit_code"] if done["exit_code"] is not None else 1
                output = done["output"]
                print(output, end="" if output.endswith("\n") or not output else "\n", flush=True)
                if code == LATE:
                    print(done["failure_reason"], file=sys.stderr)
            runner.run(client.rock("POST", "/close_session", session))
        finally:
            runner.run(client.close())
    return code


def ask_service(url: str, token_env: str | None, work: Callable[[ServiceClient], Awaitable[T]]) -> T:
    """Send requests to a service, and return what `work` returns. Raises `ConfigError` or `SandboxError`."""

    async def ask() -> T:
        client = _client(url, token_env)
        try:
            return await work(client)
        except Missing as error:  # the user typed an id that does not exist
            raise ConfigError(str(error)) from None
        finally:
            await client.close()

    return asyncio.run(ask())


def _client(url: str, token_env: str | None) -> ServiceClient:
    headers = {"X-Cluster": "default"}
    if token_env is not None:
        headers["Authorization"] = f"Bearer {read_token(token_env)}"
    return ServiceClient(check_url(url), headers)


def read_token(variable: str) -> str:
    """Return the token in an environment variable. Raises `ConfigError` if it is not set."""
    if not variable.isidentifier():  # it may be the secret itself
        raise ConfigError("--token-env takes the name of an environment variable that holds the token, not the token.")
    token = os.environ.get(variable, "").strip()
    if not token:
        raise ConfigError(f"--token-env names the environment variable {variable}, which is not set.")
    return token


def _lines(prompt: str) -> Any:
    """Yield the lines that are typed or piped in, until the input ends."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    while True:
        try:
            yield input(prompt)
        except EOFError:
            print(file=sys.stderr)
            return
