"""Clients of a ROCK service under `rock.py`: they start sandboxes by ids that they give and repeat, run commands in
them whose exit code and output they know, and stop them. What they may not see:

1. A wrong exit code or output, ever; or a command that ran twice. An error in a sentence is no answer, so it is right.
2. Two sandboxes for one id. Each sandbox holds a token of its own: it changes if, and only if, the id's history has an
   end in it.
3. A running sandbox that is lost though no fault can have ended it (`Load.may_be_lost`).
4. A request without any answer, and a start that never succeeds.
"""

from __future__ import annotations

import asyncio
import random
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rock_parts import Machine

from ale.errors import AleError, SandboxError
from ale_rock.client.service_client import ALE, ServiceClient

T = TypeVar("T")
AGAIN_S = 0.2
ANSWERED_S = 90.0
"""All faults of a time are over after this time, and what was asked for again and again must have succeeded."""
DRAIN_S = 150.0
MOST_BOXES = 4
IDENTIFY = (
    "[ -e /tmp/token ] || { od -An -N8 -tx1 /dev/urandom >/tmp/token.$$; ln /tmp/token.$$ /tmp/token 2>/dev/null; }; "
    "cat /tmp/token; sort /tmp/ran | uniq -d"
)
"""The token appears whole or not at all: a fault may kill this command anywhere."""


@dataclass
class Box:
    """A sandbox, as its client knows it."""

    id: str
    token: str = ""
    """What it holds; empty: it was not asked yet."""
    ends: int = 0
    """How often a sandbox of this id has ended without its client's doing."""
    where: str = ""
    """The machine on which it was found."""


@dataclass
class Load:
    """What all clients share."""

    client: ServiceClient
    machines: list[Machine]
    wrong: list[str] = field(default_factory=list)
    answers: int = 0
    wrong_answers: int = 0
    errors: int = 0
    starts: int = 0
    lost: int = 0
    may_be_lost: set[str] = field(default_factory=set)
    """Machines and sandboxes that current faults may have ended."""
    over: bool = False

    def __post_init__(self) -> None:
        self.going = asyncio.Event()
        self.going.set()
        self.busy = 0

    async def pause(self) -> None:
        """Let all clients finish what they do, and nothing more."""
        self.going.clear()
        until = time.monotonic() + DRAIN_S
        while self.busy:
            if time.monotonic() > until:
                self.wrong.append(f"{self.busy} requests had no end in {DRAIN_S:.0f} s")
                return
            await asyncio.sleep(0.02)


class Client:
    """One client, with its sandboxes."""

    def __init__(self, load: Load, name: str, rng: random.Random) -> None:
        self.load, self.name, self.rng = load, name, rng
        self.boxes: list[Box] = []
        self._count = 0

    async def run(self) -> None:
        """Work until the load is over."""
        load = self.load
        while not load.over:
            await load.going.wait()
            load.busy += 1
            try:
                await self._step()
            finally:
                load.busy -= 1
            await asyncio.sleep(self.rng.uniform(0.0, 0.1))

    async def _step(self) -> None:
        chance = self.rng.random()
        if len(self.boxes) < 2 or (chance < 0.1 and len(self.boxes) < MOST_BOXES):
            self._count += 1
            box = Box(f"{self.name}-{self._count}")
            if await self._start(box):
                self.boxes.append(box)
            return
        box = self.rng.choice(self.boxes)
        if chance < 0.2:
            await self._stop(box)
        elif chance < 0.25:
            if not await self._start(box):
                self.boxes.remove(box)
        else:
            await self._command(box)

    # --- starts and stops

    async def _start(self, box: Box) -> bool:
        """Start a sandbox, or ask for the one of this id again, sometimes twice at once."""
        request = {"sandbox_id": box.id, "image": "python:3.11", "cpus": 0.1, "memory": "64m", "startup_timeout": 60}

        async def ask() -> str:
            return (await self.load.client.rock("POST", "/start_async", request))["sandbox_id"]

        times = 2 if self.rng.random() < 0.3 else 1
        got = await asyncio.gather(*(self._until_answered(ask, f"the start of {box.id}") for _ in range(times)))
        self.load.starts += 1
        if any(each not in (box.id, None) for each in got):
            self.load.wrong.append(f"the start of {box.id} gave {got}")
        return None not in got and await self.look(box)

    async def _stop(self, box: Box) -> None:
        async def ask() -> dict[str, Any]:
            await self.load.client.rock("POST", "/stop", {"sandbox_id": box.id})
            return await self._status(box.id)

        self.boxes.remove(box)
        status = await self._until_answered(ask, f"the stop of {box.id}")
        if status is not None and (status["is_alive"] or status["state"] != "stopped"):
            self.load.wrong.append(f"{box.id} was stopped, and is {status['state']}")

    async def try_service(self) -> None:
        """Start a new sandbox, run a command in it and stop it: it ends when the service works again."""
        self._count += 1
        self.boxes = [Box(f"{self.name}-{self._count}")]
        if await self._start(self.boxes[0]):
            await self._command(self.boxes[0])
        await self.stop_all()

    async def stop_all(self) -> None:
        """Stop all of its sandboxes."""
        for box in list(self.boxes):
            await self._stop(box)

    async def _status(self, sandbox_id: str) -> dict[str, Any]:
        query = {"sandbox_id": sandbox_id, "include_all_states": "true"}
        return await self.load.client.rock("GET", "/get_status", query=query)

    async def _until_answered(self, ask: Callable[[], Awaitable[T]], what: str) -> T | None:
        """Ask again and again, until there is an answer; None if none came in time or the request was refused."""
        until = time.monotonic() + ANSWERED_S
        while True:
            try:
                return await ask()
            except SandboxError as error:
                self.load.errors += 1
                if time.monotonic() > until:
                    self.load.wrong.append(f"{what} did not succeed in {ANSWERED_S:.0f} s: {error}")
                    return None
            except AleError as error:  # the caller's fault, it says
                self.load.wrong.append(f"{what} was refused: {error}")
                return None
            await asyncio.sleep(AGAIN_S)

    # --- commands

    async def _command(self, box: Box) -> None:
        code, nonce = self.rng.randrange(256), self.rng.randbytes(6).hex()
        text = nonce * self.rng.choice((1, 1, 10, 300))
        pause = self.rng.choice((0, 0, 0.1, 1))
        script = f"echo {nonce} >>/tmp/ran; sleep {pause}; printf %s {text}; printf %s {nonce} >&2; exit {code}"
        ways = {"execute": self._execute, "exec": self._exec, "session": self._in_session}
        way = self.rng.choice(list(ways))
        try:
            got = await ways[way](box.id, script)
        except SandboxError:
            self.load.errors += 1
            if not await self.look(box):
                self.boxes.remove(box)
            return
        except AleError as error:
            self.load.wrong.append(f"a command in {box.id} ({way}) was refused: {error}")
            return
        self.load.answers += 1
        expected = (code, text + nonce if way == "session" else text, "" if way == "session" else nonce)
        if got != expected:
            self.load.wrong_answers += 1
            self.load.wrong.append(f"a command in {box.id} ({way}) gave {str(got)[:200]}, not {str(expected)[:200]}")

    async def _execute(self, sandbox_id: str, script: str) -> tuple[int, str, str]:
        body = {"sandbox_id": sandbox_id, "command": ["sh", "-c", script], "timeout": 60}
        done = await self.load.client.rock("POST", "/execute", body)
        return done["exit_code"], done["stdout"], done["stderr"]

    async def _exec(self, sandbox_id: str, script: str) -> tuple[int, str, str]:
        body = {"command": script, "timeout_s": 60}
        done = await self.load.client.json("POST", f"{ALE}/sandboxes/{sandbox_id}/exec", body)
        return done["exit_code"], b64decode(done["stdout"]).decode(), b64decode(done["stderr"]).decode()

    async def _in_session(self, sandbox_id: str, script: str) -> tuple[int, str, str]:
        named = {"sandbox_id": sandbox_id, "session": f"s{self.rng.randbytes(4).hex()}"}
        await self.load.client.rock("POST", "/create_session", named)
        asked = {**named, "command": f"({script})", "check": "silent", "timeout": 60}
        done = await self.load.client.rock("POST", "/run_in_session", asked)
        await self.load.client.rock("POST", "/close_session", named)
        return done["exit_code"], done["output"], ""

    # --- what it is

    async def look(self, box: Box) -> bool:
        """Compare a sandbox with what is known of it; returns whether it lives."""

        async def ask() -> tuple[dict[str, Any], str | None]:
            status = await self._status(box.id)
            if not status["is_alive"]:
                return status, None
            try:
                code, found, _ = await self._execute(box.id, IDENTIFY)
            except SandboxError:
                if (after := await self._status(box.id))["is_alive"]:
                    raise  # a fault is under way
                return after, None
            if count_ends(await self._status(box.id)) != count_ends(status):
                raise SandboxError("It has ended meanwhile.")
            return status, found if code == 0 else f"exit code {code}: {found}"

        answer = await self._until_answered(ask, f"a look at {box.id}")
        if answer is None:
            return False
        status, found = answer
        ends = count_ends(status)
        if box.token:
            self._compare(box, status, ends, found)
        if found is not None:
            lines = found.split("\n")
            if lines[1:] != [""]:
                self.load.wrong.append(f"in {box.id}, commands ran twice, or not all of this is a token: {found!r}")
            box.token, box.ends = lines[0], ends
            box.where = next((each.name for each in self.load.machines if box.id in each.living()), box.where)
        return found is not None

    def _compare(self, box: Box, status: dict[str, Any], ends: int, found: str | None) -> None:
        if ends == box.ends:
            if found is None:
                self.load.wrong.append(f"{box.id} is {status['state']} without an end in its history: {status}")
            elif not found.startswith(box.token):
                self.load.wrong.append(f"{box.id} is another sandbox than before: {found!r}, not {box.token!r}")
            return
        self.load.lost += ends - box.ends
        if found is not None and found.startswith(box.token):
            self.load.wrong.append(f"{box.id} was reported as ended, and lives: {status['state_history']}")
        on = {box.where} if box.where else {each.name for each in self.load.machines}
        if not {box.id, *on} & self.load.may_be_lost:
            why = status["message"] or [each["event"] for each in status["state_history"][-5:]]
            self.load.wrong.append(f"{box.id} on {box.where} was lost, and no fault can have ended it: {why}")


def count_ends(status: dict[str, Any]) -> int:
    """Return how often a sandbox of this id has ended."""
    return sum(each["from_state"] == "running" for each in status["state_history"])
