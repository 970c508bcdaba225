"""What sandboxes of a ROCK service can do beyond the contract: a class for each protocol.

A worker reports which protocols its sandboxes have. `sandbox_type_of` composes the class of sandboxes with these
protocols, so a run sees by `isinstance` what it gets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import cache
from pathlib import Path
from typing import cast

from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox import AGENT, ExecResult, SandboxSpec
from ale.specs.sandbox_protocols import Output, SandboxStats, Shell
from ale_rock.client import trees
from ale_rock.client.sandbox import RockSandbox
from ale_rock.client.service_client import ANSWER_S, ROCK
from ale_rock.http.streaming import FAULT, ONCE, RESULT, STDOUT, bound_window, read_frames
from ale_rock.schemas.exec import command_body, result_of

RESET_S = 120.0
STREAM = {"Content-Type": "application/json", **ONCE}


class StreamingSandbox(RockSandbox):
    """Has `Streams`."""

    async def exec_stream(
        self,
        command: str,
        *,
        timeout_s: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        user: str = AGENT,
    ) -> AsyncGenerator[Output | ExecResult, None]:
        asked = json.dumps(command_body(command, timeout_s, cwd, env, stdin, user)).encode()
        request = self.client.request("POST", f"{self.path}/stream", asked, timeout_s + ANSWER_S, headers=STREAM)
        async with AsyncExitStack() as stack:
            response = await self.call(stack.enter_async_context(request))
            bound_window(response)
            frames = await stack.enter_async_context(aclosing(read_frames(response.content.iter_any())))
            while True:
                kind, data = await self.call(_next_frame(frames, self.id))
                if kind == FAULT:
                    raise SandboxError(json.loads(data)["detail"])
                if kind == RESULT:
                    yield result_of(json.loads(data))
                    return
                yield Output("stdout" if kind == STDOUT else "stderr", data)


async def _next_frame(frames: AsyncGenerator[tuple[bytes, bytes], None], sandbox_id: str) -> tuple[bytes, bytes]:
    try:
        return await anext(frames)
    except (StopAsyncIteration, ValueError):
        raise SandboxError(f"The service broke off the output of a command in the sandbox {sandbox_id}.") from None


class ShellSandbox(RockSandbox):
    """Has `Shells`."""

    async def open_shell(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: str = AGENT
    ) -> Shell:
        asked = {"cwd": cwd, "env": dict(env or {}), "user": user}
        opened = await self.call(self.client.json("POST", f"{self.path}/shells", asked))
        path = f"{self.path}/shells/{opened['shell']}"
        self.shells.add(path)
        return RockShell(self, path)


class RockShell(Shell):
    """A shell in a sandbox of the service."""

    def __init__(self, box: RockSandbox, path: str) -> None:
        self._box, self._path = box, path
        self._turn = asyncio.Lock()
        self._closing: asyncio.Future[None] | None = None

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = 1 << 20) -> ExecResult:
        asked = {"command": command, "timeout_s": timeout_s, "max_output_bytes": max_output_bytes}

        async def run() -> ExecResult:
            async with self._turn:
                if self._closing is not None:
                    raise SandboxError(f"The shell of the sandbox {self._box.id} has been closed; open another one.")
                path, answer_s = f"{self._path}/run", timeout_s + ANSWER_S
                return result_of(await self._box.client.json("POST", path, asked, answer_s))

        return await self._box.call(run())

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._box.call(self._box.client.json("DELETE", self._path))
        except SandboxError:
            return  # the sandbox has ended, and the shell with it
        finally:
            self._box.shells.discard(self._path)


class TreeSandbox(RockSandbox):
    """Has `Trees`."""

    async def upload_tree(self, source: Path, target: str, *, user: str = AGENT) -> None:
        await self.call(trees.upload(self, Path(source), target, user))

    async def download_tree(self, source: str, target: Path, *, max_bytes: int = 1 << 32) -> None:
        await self.call(trees.download(self, source, Path(target), max_bytes))


class SnapshotSandbox(RockSandbox):
    """Has `Snapshots`."""

    async def snapshot(self, name: str | None = None) -> str:
        """The snapshot lies on the disk of this sandbox's worker, and others start from it there."""
        return await self.call(self.owner.own_snapshots.take(self.path, name))


class ResettableSandbox(RockSandbox):
    """Has `Resets`."""

    async def reset(self, spec: SandboxSpec) -> None:
        for name in SandboxSpec.model_fields.keys() - {"env", "files", "labels"}:
            if getattr(spec, name) != getattr(self.spec, name):
                raise ConfigError(
                    f"The sandbox {self.id} was started with another {name}, which a reset cannot change; start a new "
                    "one."
                )
        sent = self.owner.sent_spec(spec, self.id)
        await self.call(self.client.json("POST", f"{self.path}/reset", {"spec": sent}, RESET_S))
        self.spec = spec


class MeasuredSandbox(RockSandbox):
    """Has `Measures`."""

    async def stats(self) -> SandboxStats:
        asked = self.client.rock("GET", "/get_sandbox_statistics", query={"sandbox_id": self.id})
        now = (await self.call(asked))["now"]
        if now is None:
            raise SandboxError(f"The service cannot measure the sandbox {self.id} now.")
        return SandboxStats(**{name: now[name] for name in SandboxStats.__slots__})


class LoggedSandbox(RockSandbox):
    """Has `Logs`."""

    async def logs(self) -> str:

        async def get() -> str:
            path = f"{ROCK}/sandboxes/{self.path.rpartition('/')[2]}/logs"
            async with self.client.request("GET", path) as response:
                return (await response.read()).decode("utf-8", "replace")

        return await self.call(get())


PARTS: dict[str, type[RockSandbox]] = {
    "Streams": StreamingSandbox,
    "Shells": ShellSandbox,
    "Trees": TreeSandbox,
    "Snapshots": SnapshotSandbox,
    "Resets": ResettableSandbox,
    "Measures": MeasuredSandbox,
    "Logs": LoggedSandbox,
}
"""The classes by the protocol's name."""


@cache
def sandbox_type_of(protocols: frozenset[str]) -> type[RockSandbox]:
    """Return the class of sandboxes that have these protocols, as far as they can be had through the service."""
    parts = tuple(part for name, part in PARTS.items() if name in protocols)
    return cast(type[RockSandbox], type("RockSandbox", parts or (RockSandbox,), {}))
