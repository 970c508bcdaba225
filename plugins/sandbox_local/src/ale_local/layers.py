"""Where snapshots are kept: below the state folder, so that other processes of this user find, use and remove them.

1. `NAME.json` says in which folder a snapshot is; it is replaced in one go, so a name means the old state or the new one.
2. Whoever uses a folder holds its lock (`flock`), which the kernel takes back when that process ends. A folder that no name
   means any more and that nobody holds is removed by whoever comes across it (`collect`).
3. A folder that is being written, or removed, is named after the process that does it: where that was killed, `reclaim`
   removes it, and the unnamed snapshots of processes that are gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Literal

from ale.errors import ConfigError
from ale_resident.owner import remove_folder, runs, this_process

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
UNNAMED = "unnamed-"
Form = Literal["layer", "archive"]


@dataclass(frozen=True)
class Snapshot:
    """What its JSON says."""

    folder: str
    form: Form
    """layer: folder N holds the Nth place, as an overlay needs it; archive: file N holds the records of the Nth place."""
    places: tuple[str, ...]
    uid_base: int
    """As root: the host's id of the sandbox's id 0."""
    bytes: int
    """What its files hold."""
    created_at: float
    owner: str | None
    """The process (id and start time) with which an unnamed one goes."""


@dataclass
class Draft:
    """A snapshot in the making: its folder stays until `close`."""

    path: Path
    lock: int

    def close(self) -> None:
        """Let it go. Idempotent."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


@dataclass
class Held(Draft):
    """A snapshot in use."""

    snapshot: Snapshot


class Layers:
    """The snapshots of this user. All calls block."""

    def __init__(self, state_folder: Path) -> None:
        self.folder = state_folder / "snapshots"
        self.unnamed: set[str] = set()
        """Those that go when their provider is closed."""

    def names(self) -> list[str]:
        """All of them."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def read(self, name: str) -> Snapshot | None:
        """One of them; None where there is none."""
        if not NAME.fullmatch(name):
            return None
        try:
            found = json.loads((self.folder / f"{name}.json").read_text())
            return Snapshot(**{**found, "places": tuple(found["places"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def hold(self, name: str) -> Held:
        """One of them, to be used. Raises `ConfigError` where there is none."""
        while (snapshot := self.read(name)) is not None:
            path = self.folder / snapshot.folder
            # Where it is being removed, the name means another folder by now, or none.
            with suppress(FileNotFoundError, BlockingIOError):
                held = Held(path, os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC), snapshot)
                try:
                    fcntl.flock(held.lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    if self.read(name) == snapshot:
                        return held
                except BaseException:
                    held.close()
                    raise
                held.close()
            if not (path / "lock").exists() and self.read(name) == snapshot:
                break  # somebody removed the folder by hand
        known = ", ".join(self.names()[:20]) or "none"
        raise ConfigError(f"There is no snapshot {name!r} of local sandboxes; there are these snapshots: {known}.")

    def draft(self) -> Draft:
        """A folder for a new one. Afterwards it is to be given to `settle`."""
        path = self.folder / f"part-{this_process()}-{token_hex(8)}"
        while True:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):  # somebody removed the last one, and the folder with it
                path.mkdir(mode=0o700)
                break
        draft = Draft(path, os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        fcntl.flock(draft.lock, fcntl.LOCK_SH)
        return draft

    def settle(self, draft: Draft) -> None:
        """Let a draft go; it is removed where it was not published, and so is what it replaced where it was."""
        draft.close()
        if draft.path.exists():
            remove_folder(draft.path)
        self.collect()

    def publish(
        self, draft: Draft, name: str | None, form: Form, places: tuple[str, ...], uid_base: int, size: int
    ) -> str:
        """Give a draft its name, in the place of what had it; the name."""
        owner = None if name is not None else this_process()
        name = name or f"{UNNAMED}{token_hex(8)}"
        folder = self.folder / f"layer-{token_hex(8)}"
        snapshot = Snapshot(folder.name, form, places, uid_base, size, time.time(), owner)
        (draft.path / "record").write_text(json.dumps(asdict(snapshot)))
        draft.path.rename(folder)
        (folder / "record").replace(self.folder / f"{name}.json")
        if owner is not None:
            self.unnamed.add(name)
        return name

    def remove(self, name: str) -> None:
        """Remove one. Idempotent; who runs from it goes on."""
        if NAME.fullmatch(name):
            (self.folder / f"{name}.json").unlink(missing_ok=True)
        self.collect()

    def close(self) -> None:
        """Remove the unnamed ones of this provider."""
        for name in self.unnamed:
            (self.folder / f"{name}.json").unlink(missing_ok=True)
        self.unnamed.clear()
        self.collect()

    def reclaim(self) -> None:
        """Remove what processes that are gone have left."""
        for name in self.names():
            found = self.read(name)
            if found is not None and found.owner is not None and not runs(found.owner):
                (self.folder / f"{name}.json").unlink(missing_ok=True)
        for path in self.folder.glob("part-*"):
            if not runs("-".join(path.name.split("-")[1:3])):
                remove_folder(path)
        self.collect()

    def collect(self) -> None:
        """Remove the folders that no name means and nobody holds."""
        for path in self.folder.glob("layer-*"):
            if path.name in self.meant():
                continue
            try:
                lock = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.name not in self.meant():
                    gone = self.folder / f"part-{this_process()}-{token_hex(8)}"
                    path.rename(gone)
                    remove_folder(gone)
            except (BlockingIOError, FileNotFoundError):
                continue
            finally:
                os.close(lock)
        with suppress(OSError):
            self.folder.rmdir()

    def meant(self) -> set[str]:
        """The folders that names mean."""
        return {found.folder for found in map(self.read, self.names()) if found is not None}


def check_name(name: str | None) -> None:
    """Refuse what cannot be a snapshot's name. Raises `ConfigError`."""
    if name is not None and (not NAME.fullmatch(name) or name.startswith(UNNAMED)):
        raise ConfigError(
            f"A snapshot cannot be named {name!r}; use up to 64 letters, digits, '-' and '_', and not {UNNAMED!r} to begin with."
        )
