"""How `ale cluster` and a run talk: by files in the folder `cluster` of the run folder.

roles.json       written by the run whenever something changes: each actor's role, name, node, devices and state
NAME.request     a wish of `ale cluster scale`; the run takes it by renaming it to NAME.taken
NAME.answer      what became of it; who wished removes it
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ale.errors import AleError, ConfigError
from ale.registry.validation import describe_error

log = logging.getLogger("ale.cluster")
FOLDER, ROLES = "cluster", "roles.json"
LOOK_S = 0.5
TAKEN_S, ANSWER_S = 10.0, 900.0
"""How long a wish waits until a run takes it, and then for its answer."""


def write_json(path: Path, data: Any) -> None:
    """Write a file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(data, indent=1))
    beside.replace(path)


def row_of(role: str, name: str, node: str, pid: int, devices: int, state: str, version: int | None) -> dict[str, Any]:
    """Return an actor for `roles.json`."""
    columns = {"role": role, "name": name, "node": node[:8], "pid": pid, "devices": devices, "state": state}
    return columns | {"version": "" if version is None else version}


async def serve_wishes(folder: Path, fulfil: Callable[[str, int], Awaitable[str]]) -> None:
    """Take wishes for ever: `fulfil(role, count)` returns a sentence about what was done, or raises `AleError`."""
    while True:
        for wish in _wishes(folder):
            try:
                await _serve(wish, fulfil)
            except Exception as error:  # whatever it is: the next wish can be fulfilled
                log.warning("the wish %s could not be answered: %s", wish.name, describe_error(error))
        await asyncio.sleep(LOOK_S)


async def _serve(wish: Path, fulfil: Callable[[str, int], Awaitable[str]]) -> None:
    taken = wish.with_suffix(".taken")
    if not _take(wish, taken):
        return
    text, done = "The run has ended before it was done.", False
    try:
        role, count = _read_wish(taken)
    except (KeyError, TypeError, ValueError) as error:
        text = f"The wish cannot be read: {error}."
    else:
        try:
            text, done = await fulfil(role, count), True
        except AleError as error:
            text = str(error)
        except Exception as error:
            text = f"The run could not do it: {describe_error(error)}."
    finally:
        write_json(wish.with_suffix(".answer"), {"done": done, "text": text})
        _remove(taken)


def _take(wish: Path, taken: Path) -> bool:
    try:
        wish.replace(taken)
        return True
    except FileNotFoundError:  # who wished has given up
        return False


def _read_wish(taken: Path) -> tuple[str, int]:
    data = json.loads(taken.read_text())
    return str(data["role"]), int(data["count"])


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)


def _wishes(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.request"))


def wish_for(folder: Path, role: str, count: int) -> str:
    """Ask the run of this folder for a number of actors, and wait; returns what it says. Raises `ConfigError`."""
    wish = folder / f"{uuid.uuid4().hex[:8]}.request"
    taken, answer = wish.with_suffix(".taken"), wish.with_suffix(".answer")
    write_json(wish, {"role": role, "count": count})
    began = time.monotonic()
    try:
        while not answer.exists():
            waited = time.monotonic() - began
            if waited > ANSWER_S or (waited > TAKEN_S and not taken.exists() and not answer.exists()):
                raise ConfigError(f"No run answers in {folder.parent}: it has ended, or it has no section cluster.")
            time.sleep(0.1)
        said = json.loads(answer.read_text())
    finally:
        for each in (wish, answer):
            _remove(each)
    if not said["done"]:
        raise ConfigError(str(said["text"]))
    return str(said["text"])


def read_roles(folder: Path) -> dict[str, Any]:
    """Return what the run wrote last. Raises `ConfigError`."""
    try:
        data: dict[str, Any] = json.loads((folder / ROLES).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder.parent} holds no run on a cluster ({ROLES} cannot be read: {error}); a run has one from its "
            "section cluster on."
        ) from error
    return data
