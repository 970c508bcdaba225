"""How `ale cluster` and a run communicate: by files in the folder `cluster` of the run folder.

roles.json       written by the run whenever something changes: each actor's role, name, node, devices (`cpu`, or how
                 many GPUs) and state, and its part if the engine is one of several kinds; `ale report` reads it
NAME.request     a request of `ale cluster scale`; the run takes one after another by renaming it to NAME.taken
NAME.answer      the result; the command that asked removes it

A run that is killed cannot write that it has ended. A command on the same machine finds that out by the lock of the run
folder, which the kernel releases when the run's process ends.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ale.errors import AleError, ConfigError
from ale.registry.validation import describe_error
from ale.store.run_store import lock_folder
from ale_ray.ray_connection import describe_nodes
from ale_ray.timer_coalescing import wait_for_tick

log = logging.getLogger("ale.cluster")
FOLDER, ROLES = "cluster", "roles.json"
RUNNING, KILLED = "running", "killed"
"""States of a run; another one is `ended`."""
LOOK_S = 1.0
TAKEN_S, ANSWER_S = 10.0, 900.0
"""How long a request waits until an idle run takes it, and how long it waits for its result."""


def write_json(path: Path, data: Any) -> None:
    """Write a file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(data, indent=1))
    beside.replace(path)


def write_roles(folder: Path, state: str, rows: list[dict[str, Any]]) -> None:
    """Write the actors of a run whose process this is. It raises nothing: it is only to look at."""
    try:
        found = {"state": state, "host": socket.gethostname(), "nodes": describe_nodes(), "roles": rows}
        write_json(folder / ROLES, found)
    except Exception as error:  # of the disk, or of Ray
        log.warning("%s cannot be written: %s", folder / ROLES, describe_error(error))


def row_of(role: str, name: str, node: str, pid: int, devices: str, state: str, version: int | None) -> dict[str, Any]:
    """Return an actor for `roles.json`."""
    columns = {"role": role, "name": name, "node": node[:8], "pid": pid, "devices": devices, "state": state}
    return columns | {"version": "" if version is None else version}


async def serve_scale_requests(folder: Path, scale: Callable[[str, int], Awaitable[str]]) -> None:
    """Take requests for ever: `scale(role, count)` returns a sentence about what was done, or raises `AleError`."""
    _forget_taken(folder)
    while True:
        for request in _open_requests(folder):
            try:
                await _serve(request, scale)
            except Exception as error:  # whatever it is: the next request can be served
                log.warning("the request %s could not be answered: %s", request.name, describe_error(error))
        await wait_for_tick(LOOK_S)


async def _serve(request: Path, scale: Callable[[str, int], Awaitable[str]]) -> None:
    taken = request.with_suffix(".taken")
    if not _take(request, taken):
        return
    text, done = "The run has ended before it was done.", False
    try:
        role, count = _read_request(taken)
    except (KeyError, TypeError, ValueError) as error:
        text = f"The request cannot be read: {error}."
    else:
        try:
            text, done = await scale(role, count), True
        except AleError as error:
            text = str(error)
        except Exception as error:
            text = f"The run could not do it: {describe_error(error)}."
    finally:
        write_json(request.with_suffix(".answer"), {"done": done, "text": text})
        _remove(taken)


def _take(request: Path, taken: Path) -> bool:
    try:
        request.replace(taken)
        return True
    except FileNotFoundError:  # the command has given up
        return False


def _read_request(taken: Path) -> tuple[str, int]:
    data = json.loads(taken.read_text())
    return str(data["role"]), int(data["count"])


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)


def _forget_taken(folder: Path) -> None:
    """Remove the request that this run was serving when its earlier process was killed."""
    for taken in folder.glob("*.taken"):
        _remove(taken)


def _open_requests(folder: Path) -> list[Path]:
    with suppress(OSError):  # mostly nobody has asked yet, and the folder is not there
        return [folder / name for name in sorted(os.listdir(folder)) if name.endswith(".request")]
    return []


def request_scale(folder: Path, role: str, count: int, note: Callable[[str], None] = print) -> str:
    """Ask the run of this folder for a number of actors, and wait; returns what it says. `note` gets a sentence if the
    run serves another request. Raises `ConfigError`."""
    request = folder / f"{uuid.uuid4().hex[:8]}.request"
    taken, answer = request.with_suffix(".taken"), request.with_suffix(".answer")
    write_json(request, {"role": role, "count": count})
    began = at_work = time.monotonic()
    noted = False
    try:
        while not answer.exists():
            now = time.monotonic()
            if any(folder.glob("*.taken")):
                at_work = now
                if not (noted or taken.exists() or answer.exists()):
                    noted = True
                    note("The run is busy with another change; this one waits for its turn.")
            if (now - at_work > TAKEN_S or _was_killed(folder)) and not answer.exists():
                raise ConfigError(f"No run answers in {folder.parent}: it has ended, or it has no section cluster.")
            if now - began > ANSWER_S and not answer.exists():
                raise ConfigError(
                    f"The run in {folder.parent} has not done it within {ANSWER_S:g} s. It may still be at it: `ale "
                    "cluster status` shows what it has."
                )
            time.sleep(0.1)
        said = json.loads(answer.read_text())
    finally:
        for each in (request, answer):
            _remove(each)
    if not said["done"]:
        raise ConfigError(str(said["text"]))
    return str(said["text"])


def read_roles(folder: Path) -> dict[str, Any]:
    """Return what the run wrote last; its `state` is `killed` if its process, on this machine, has ended without saying
    so. Raises `ConfigError`."""
    try:
        data: dict[str, Any] = json.loads((folder / ROLES).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder.parent} holds no run on a cluster ({ROLES} cannot be read: {error}); a run has one from its "
            "section cluster on."
        ) from error
    return data | {"state": KILLED} if _is_killed(folder, data) else data


def _was_killed(folder: Path) -> bool:
    try:
        return bool(read_roles(folder)["state"] == KILLED)
    except ConfigError:  # it has written nothing yet
        return False


def _is_killed(folder: Path, roles: dict[str, Any]) -> bool:
    if roles.get("state") != RUNNING or roles.get("host") != socket.gethostname():
        return False  # the lock of another machine's process may not be seen here
    try:
        os.close(lock_folder(folder.parent))
    except ConfigError:
        return False
    return True
