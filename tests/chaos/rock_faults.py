"""The faults of `rock.py`: each does its damage to a service, says what may be lost by it (`Load.may_be_lost`), mends
it, and returns from when its recovery is counted: when a part was killed, or when what was held up goes on.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from rock_load import Load
from rock_parts import Machine, RockService

TIMEOUT_S = 5.0
"""The service's `worker_timeout_s`: who is silent for longer is lost."""
MOST_S = 2 * TIMEOUT_S
SURELY_S = 0.6 * TIMEOUT_S
"""A worker that is silent for no longer than this loses nothing: a heartbeat comes in time before and after."""
SILENT_S = 18.0
"""Longer than the admin waits for its database."""
SANDBOX_S = 20.0

Fault = Callable[[RockService, Load, random.Random], Awaitable[float]]


async def _kill_admin(service: RockService, load: Load, rng: random.Random) -> float:
    service.admin.kill()
    await asyncio.sleep(rng.choice((0.0, 0.0, rng.uniform(0.0, TIMEOUT_S))))
    began = time.monotonic()
    service.admin.start()
    return began


async def _pause_admin(service: RockService, load: Load, rng: random.Random) -> float:
    service.admin.pause()
    await asyncio.sleep(rng.uniform(1.0, MOST_S))
    service.admin.go_on()
    return time.monotonic()


async def _kill_worker(service: RockService, load: Load, rng: random.Random) -> float:
    machine = rng.choice(service.machines)
    load.may_be_lost.add(machine.name)
    machine.worker.kill()
    began = time.monotonic()
    await asyncio.sleep(rng.choice((0.0, rng.uniform(0.0, MOST_S))))
    machine.worker.start()
    return began


async def _pause_worker(service: RockService, load: Load, rng: random.Random) -> float:
    machine = rng.choice(service.machines)
    load.may_be_lost.add(machine.name)
    machine.worker.pause()
    await asyncio.sleep(TIMEOUT_S + rng.uniform(0.5, 3.0))
    machine.worker.go_on()
    return time.monotonic()


async def _kill_sandbox(service: RockService, load: Load, rng: random.Random) -> float:
    until = time.monotonic() + SANDBOX_S
    while not (found := [each for machine in service.machines for each in machine.living().items()]):
        assert time.monotonic() < until, "there was no sandbox to kill"
        await asyncio.sleep(0.05)
    sandbox_id, pid = rng.choice(found)
    load.may_be_lost.add(sandbox_id)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # its resident, which runs its commands
    return time.monotonic()


async def _cut_network(service: RockService, load: Load, rng: random.Random) -> float:
    machine: Machine = rng.choice(service.machines)
    seconds = rng.choice((rng.uniform(0.5, SURELY_S), rng.uniform(TIMEOUT_S, MOST_S)))
    if seconds > SURELY_S:
        load.may_be_lost.add(machine.name)
    machine.cut()
    await asyncio.sleep(seconds)
    machine.heal()
    return time.monotonic()


async def _cut_database(service: RockService, load: Load, rng: random.Random) -> float:
    service.relay.cut()
    await asyncio.sleep(rng.choice((0.0, rng.uniform(0.0, MOST_S))))
    service.relay.heal()
    return time.monotonic()


async def _stall_database(service: RockService, load: Load, rng: random.Random) -> float:
    service.relay.stall()
    await asyncio.sleep(rng.choice((rng.uniform(1.0, MOST_S), SILENT_S)))
    service.relay.heal()
    return time.monotonic()


async def _kill_database(service: RockService, load: Load, rng: random.Random) -> float:
    assert service.server is not None
    service.server.kill()
    await asyncio.sleep(rng.uniform(0.0, TIMEOUT_S))
    await asyncio.to_thread(service.server.start)
    return time.monotonic()


async def _lock_database(service: RockService, load: Load, rng: random.Random) -> float:
    with sqlite3.connect(service.sqlite, timeout=30, isolation_level=None) as other:
        other.execute("begin exclusive")
        await asyncio.sleep(rng.choice((rng.uniform(1.0, MOST_S), SILENT_S)))
        other.execute("rollback")
    other.close()
    return time.monotonic()


FAULTS: dict[str, Fault] = {
    "admin killed": _kill_admin,
    "admin paused": _pause_admin,
    "worker killed": _kill_worker,
    "worker paused past its time": _pause_worker,
    "sandbox killed": _kill_sandbox,
    "network cut": _cut_network,
    "database's connection cut": _cut_database,
    "database silent": _stall_database,
    "database server killed": _kill_database,
    "database locked": _lock_database,
}
ONLY_ON = {
    "database's connection cut": "postgresql",
    "database silent": "postgresql",
    "database server killed": "postgresql",
    "database locked": "sqlite",
}


def possible(database: str, network: bool, names: list[str]) -> list[str]:
    """Return those of the faults that this service can have."""
    return [name for name in names if ONLY_ON.get(name, database) == database and (network or name != "network cut")]
