"""Episodes on servers of OpenEnv (0.10), by WebSocket, or by HTTP where a server has no sessions.

1. A WebSocket connection is a session with an environment of its own. Each episode opens one and closes it; an answer
   that is late comes to a connection that nobody reads any more. A server that has no free session is asked again.
2. By HTTP there is one environment for all who ask, or a new one for each request; so one episode at a time uses it.
3. The model's text becomes the only field that an action needs, or is a JSON object with its fields.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from ale.errors import SandboxError, TaskError
from ale_env_loop.environment import Environment, EnvironmentSettings, IllegalAction, Step, read_step
from ale_env_loop.environment_process import EnvironmentProcess

RETRY_S = 0.05
"""Seconds between two questions for a free session."""
LONGEST_MESSAGE = 1 << 26
NO_ROOM = "CAPACITY_REACHED"
LOST = (aiohttp.ClientError, OSError)


class OpenEnvServer:
    """A server at a URL; `process` is the process that runs it, if it is ours."""

    def __init__(self, url: str, process: EnvironmentProcess | None = None) -> None:
        self.url = url.rstrip("/")
        self.process = process
        self.one_at_a_time = asyncio.Lock()
        self.actions: dict[str, Any] = {}
        """The JSON schema of actions; empty before `read_schema`."""

    def lost(self, why: str) -> SandboxError:
        """Return the error for a server that is gone or late; a process of ours is not used again."""
        if self.process is not None:
            self.process.broken = True
        return SandboxError(f"The OpenEnv server {self.url} {why}.")

    async def read_schema(self, client: aiohttp.ClientSession) -> None:
        """Learn what its actions are. Raises `SandboxError`."""
        if self.actions:
            return
        try:
            async with client.get(f"{self.url}/schema") as response:
                response.raise_for_status()
                self.actions = dict((await response.json())["action"])
        except TimeoutError:
            raise self.lost("did not answer GET /schema in time") from None
        except (*LOST, ValueError, KeyError, TypeError) as error:
            raise self.lost(f"does not say what its actions are (GET /schema: {error!r})") from None


@asynccontextmanager
async def open_session(
    server: OpenEnvServer, settings: EnvironmentSettings, start_timeout_s: float, timeout_s: float
) -> AsyncIterator[Environment]:
    """Open a session, and close it. Raises `SandboxError` if the server cannot be reached or has no room in time."""
    limit = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=limit) as client:
        await server.read_schema(client)
        if settings.kind == "openenv-http":
            async with server.one_at_a_time:
                yield HttpSession(server, settings, client)
            return
        session = WebSocketSession(server, settings, client, start_timeout_s, timeout_s)
        try:
            yield session
        finally:
            await session.close()


class OpenEnvSession(Environment):
    """What both ways have in common."""

    def __init__(self, server: OpenEnvServer, settings: EnvironmentSettings, client: aiohttp.ClientSession) -> None:
        self._server = server
        self._settings = settings
        self._client = client

    def _read_answer(self, data: Any) -> Step:
        """Return a step from an observation message."""
        where = f"The OpenEnv server {self._server.url}"
        try:
            observation, reward = data["observation"], data.get("reward")
            shown = as_text(observation, self._settings.observation)
        except (KeyError, TypeError, AttributeError) as error:
            raise TaskError(
                f"{where} answered {data!r:.200}, which cannot be read as an observation ({error!r})."
            ) from None
        answer = {
            "messages": [{"role": "user", "content": shown}],
            "reward": 0.0 if reward is None else float(reward),
            "terminated": bool(data.get("done")),
            "truncated": False,
        }
        return read_step(answer, where)


class WebSocketSession(OpenEnvSession):
    """One connection to `/ws`."""

    def __init__(
        self,
        server: OpenEnvServer,
        settings: EnvironmentSettings,
        client: aiohttp.ClientSession,
        start_timeout_s: float,
        timeout_s: float,
    ) -> None:
        super().__init__(server, settings, client)
        self._start_timeout_s = start_timeout_s
        self._timeout_s = timeout_s
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def reset(self, seed: int, row: Mapping[str, Any] | None) -> Step:
        """Waits while the server has no free session."""
        message = {"type": "reset", "data": {**(row or {}), "seed": seed}}
        deadline = asyncio.get_running_loop().time() + self._start_timeout_s
        while True:
            await self._connect()
            answer = await self._ask(message)
            if not (answer.get("type") == "error" and answer["data"].get("code") == NO_ROOM):
                return self._read_reply(answer)
            await self.close()
            if asyncio.get_running_loop().time() > deadline:
                raise self._server.lost(
                    f"had no free session within {self._start_timeout_s:g} s; lower rollout.concurrency, or give the "
                    "server more sessions (max_concurrent_envs)"
                )
            await asyncio.sleep(RETRY_S)

    async def step(self, action: str) -> Step:
        return self._read_reply(await self._ask({"type": "step", "data": as_action(action, self._server.actions)}))

    async def close(self) -> None:
        """Close the connection, which ends the session."""
        if self._socket is not None:
            await self._socket.close()
            self._socket = None

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                self._socket = await self._client.ws_connect(
                    f"{self._server.url}/ws",
                    max_msg_size=LONGEST_MESSAGE,
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                )
        except TimeoutError:
            raise self._server.lost(f"took no connection within {self._timeout_s:g} s") from None
        except LOST as error:
            raise self._server.lost(f"takes no connection ({error})") from None

    async def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer. Raises `SandboxError` if there is none in time."""
        assert self._socket is not None
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._socket.send_json(message)
                received = await self._socket.receive()
        except TimeoutError:
            await self.close()
            raise self._server.lost(f"did not answer '{message['type']}' within {self._timeout_s:g} s") from None
        except LOST as error:
            raise self._server.lost(f"was lost during '{message['type']}' ({error})") from None
        if received.type is not aiohttp.WSMsgType.TEXT:
            raise self._server.lost(f"was lost during '{message['type']}' (it closed the connection)")
        try:
            answer = json.loads(received.data)
        except ValueError:
            answer = None
        if not (isinstance(answer, dict) and isinstance(answer.get("data"), dict)):
            raise TaskError(
                f"The OpenEnv server {self._server.url} answered {received.data!r:.200}, which is no message."
            )
        return answer

    def _read_reply(self, answer: dict[str, Any]) -> Step:
        if answer.get("type") != "error":
            return self._read_answer(answer["data"])
        code, text = answer["data"].get("code"), answer["data"].get("message")
        if code == "VALIDATION_ERROR":
            raise IllegalAction(f"This is no valid action: {describe_errors(answer['data'].get('errors'))}")
        if code in ("EXECUTION_ERROR", "FACTORY_ERROR"):
            raise TaskError(f"The environment of the OpenEnv server {self._server.url} failed: {text}.")
        raise self._server.lost(f"answered with the error {code}: {text}")


class HttpSession(OpenEnvSession):
    """Requests to `/reset` and `/step`."""

    async def reset(self, seed: int, row: Mapping[str, Any] | None) -> Step:
        return await self._post("reset", {**(row or {}), "seed": seed})

    async def step(self, action: str) -> Step:
        return await self._post("step", {"action": as_action(action, self._server.actions)})

    async def _post(self, operation: str, data: dict[str, Any]) -> Step:
        try:
            async with self._client.post(f"{self._server.url}/{operation}", json=data) as response:
                status, body = response.status, await response.read()
        except TimeoutError:
            raise self._server.lost(f"did not answer '{operation}' in time") from None
        except LOST as error:
            raise self._server.lost(f"was lost during '{operation}' ({error})") from None
        try:
            answer = json.loads(body)
        except ValueError:
            answer = body.decode("utf-8", "replace")
        if status == 422 and isinstance(answer, dict):
            raise IllegalAction(f"This is no valid action: {describe_errors(answer.get('detail'))}")
        if status == 500:
            raise TaskError(f"The environment of the OpenEnv server {self._server.url} failed in '{operation}'.")
        if status != 200:
            raise self._server.lost(f"answered '{operation}' with the status {status}: {answer!r:.200}")
        return self._read_answer(answer)


def as_action(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action that a text means, by the JSON schema of actions. Raises `IllegalAction`."""
    fields = {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}
    needed = [name for name in schema.get("required", fields) if name in fields]
    only = next(iter(fields)) if len(fields) == 1 else needed[0] if len(needed) == 1 else None
    is_text = only is not None and fields[only].get("type") == "string"
    if only is not None and is_text and len(fields) == 1:
        return {only: text}
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, dict) and set(value) <= set(fields):
        return value
    if only is not None and (is_text or value is not None):
        return {only: text if is_text else value}
    raise IllegalAction(f"The action must be a JSON object with the fields {', '.join(fields) or 'of its schema'}.")


def as_text(observation: Any, field: str | None) -> str:
    """Return what the model is shown of an observation. Raises `TaskError` if the field is not there."""
    if isinstance(observation, dict):
        if field is not None and field not in observation:
            raise TaskError(
                f"The observation has no field '{field}' (tasks.observation); it has {', '.join(observation)}."
            )
        if field is not None:
            observation = observation[field]
        else:
            observation = {name: value for name, value in observation.items() if name != "metadata"}
            observation = next(iter(observation.values())) if len(observation) == 1 else observation
    return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)


def describe_errors(errors: Any) -> str:
    """Return the errors of a validation in a few words."""
    try:
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in errors)
    except (TypeError, KeyError):
        return str(errors)
