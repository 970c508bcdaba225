"""Stores snapshots below the state folder, where other processes of this user can find, use and remove them.

1. `NAME.json` names the folder of a snapshot; it is replaced atomically, so a name means the old state or the new one.
2. A process that uses a folder holds its lock (`flock`), which the kernel releases when the process ends. `collect`
   removes folders that no JSON names and nobody has locked; any process may call it.
3. A folder that is being written or removed is named after the process that does it. If that was killed, `reclaim`
   removes the folder, and also the unnamed snapshots of processes that have ended.
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
from ale_sandbox.host.owned_folders import is_running, remove_folder, this_process

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
UNNAMED = "unnamed-"
Form = Literal["layer", "archive"]


@dataclass(frozen=True)
class Snapshot:
    """The content of a snapshot's JSON."""

    folder: str
    form: Form
    """layer: folder N holds the Nth place, ready for an overlay; archive: file N holds the records of the Nth place."""
    places: tuple[str, ...]
    uid_base: int
    """The host's id of the sandbox's id 0, if ALE is root."""
    bytes: int
    """The size of its files."""
    created_at: float
    owner: str | None
    """The process (id and start time) that owns an unnamed snapshot; None for a named one."""


@dataclass
class Draft:
    """A snapshot that is being made: its folder is locked until `close`."""

    path: Path
    lock: int

    def close(self) -> None:
        """Release the folder's lock. Idempotent."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


@dataclass
class HeldSnapshot(Draft):
    """A snapshot in use, which is locked."""

    snapshot: Snapshot


class SnapshotStore:
    """The snapshots of this user. All calls block."""

    def __init__(self, state_folder: Path) -> None:
        self.folder = state_folder / "snapshots"
        self.unnamed: set[str] = set()
        """Unnamed snapshots, which are removed when their provider closes."""

    def names(self) -> list[str]:
        """List all snapshots."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def read(self, name: str) -> Snapshot | None:
        """Read a snapshot's JSON; return None if there is none."""
        if not NAME.fullmatch(name):
            return None
        try:
            found = json.loads((self.folder / f"{name}.json").read_text())
            return Snapshot(**{**found, "places": tuple(found["places"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def hold(self, name: str) -> HeldSnapshot:
        """Lock a snapshot for use. Raises `ConfigError` if there is none."""
        while (snapshot := self.read(name)) is not None:
            path = self.folder / snapshot.folder
            # If it is being removed, the name now means another folder or none.
            with suppress(FileNotFoundError, BlockingIOError):
                held = HeldSnapshot(path, os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC), snapshot)
                try:
                    fcntl.flock(held.lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    if self.read(name) == snapshot:
                        return held
                except BaseException:
                    held.close()
                    raise
                held.close()
            if not (path / "lock").exists() and self.read(name) == snapshot:
                break  # a user removed the folder by hand
        known = ", ".join(self.names()[:20]) or "none"
        raise ConfigError(f"There is no snapshot {name!r} of local sandboxes; the existing ones are: {known}.")

    def hold_for(self, name: str, can_fork: bool, uid_base: int) -> HeldSnapshot:
        """Lock a snapshot for a provider that may be unable to mount overlays. Raises `ConfigError` if there is none or
        it does not fit the provider."""
        held = self.hold(name)
        fault = None
        if held.snapshot.form == "layer" and not can_fork:
            fault = "was made by a provider that can mount overlays, which this one cannot"
        elif held.snapshot.form == "layer" and held.snapshot.uid_base != uid_base:
            fault = f"was made with uid_base: {held.snapshot.uid_base}, and here it is {uid_base}"
        if fault is not None:
            held.close()
            raise ConfigError(f"The snapshot {name!r} {fault}; use it where it was made, or make another.")
        return held

    def draft(self) -> Draft:
        """Make a folder for a new snapshot. The caller must pass it to `release` afterwards."""
        path = self.folder / f"part-{this_process()}-{token_hex(8)}"
        while True:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):  # another process removed the last snapshot and with it the folder
                path.mkdir(mode=0o700)
                break
        draft = Draft(path, os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        fcntl.flock(draft.lock, fcntl.LOCK_SH)
        return draft

    def release(self, draft: Draft) -> None:
        """Release a draft; remove it if it was not published, or else the snapshot that it replaced."""
        draft.close()
        if draft.path.exists():
            remove_folder(draft.path)
        self.collect()

    def publish(
        self, draft: Draft, name: str | None, *, form: Form, places: tuple[str, ...], uid_base: int, size: int
    ) -> str:
        """Give a draft its name, which may replace another snapshot; return the name."""
        owner = None if name is not None else this_process()
        name = name or f"{UNNAMED}{token_hex(8)}"
        folder = self.folder / f"layer-{token_hex(8)}"
        snapshot = Snapshot(
            folder=folder.name,
            form=form,
            places=places,
            uid_base=uid_base,
            bytes=size,
            created_at=time.time(),
            owner=owner,
        )
        (draft.path / "record").write_text(json.dumps(asdict(snapshot)))
        draft.path.rename(folder)
        (folder / "record").replace(self.folder / f"{name}.json")
        if owner is not None:
            self.unnamed.add(name)
        return name

    def remove(self, name: str) -> None:
        """Remove a snapshot. Idempotent; sandboxes that run from it continue."""
        if NAME.fullmatch(name):
            (self.folder / f"{name}.json").unlink(missing_ok=True)
        self.collect()

    def close(self) -> None:
        """Remove the unnamed snapshots of this provider."""
        for name in self.unnamed:
            (self.folder / f"{name}.json").unlink(missing_ok=True)
        self.unnamed.clear()
        self.collect()

    def reclaim(self) -> None:
        """Remove what processes that have ended left behind."""
        for name in self.names():
            found = self.read(name)
            if found is not None and found.owner is not None and not is_running(found.owner):
                (self.folder / f"{name}.json").unlink(missing_ok=True)
        for path in self.folder.glob("part-*"):
            if not is_running("-".join(path.name.split("-")[1:3])):
                remove_folder(path)
        self.collect()

    def collect(self) -> None:
        """Remove the folders that no JSON names and nobody has locked."""
        for path in self.folder.glob("layer-*"):
            if path.name in self.named_folders():
                continue
            try:
                lock = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.name not in self.named_folders():
                    gone = self.folder / f"part-{this_process()}-{token_hex(8)}"
                    path.rename(gone)
                    remove_folder(gone)
            except (BlockingIOError, FileNotFoundError):
                continue
            finally:
                os.close(lock)
        with suppress(OSError):
            self.folder.rmdir()

    def named_folders(self) -> set[str]:
        """Return the folders that snapshots' JSON files name."""
        return {found.folder for found in map(self.read, self.names()) if found is not None}


def check_name(name: str | None) -> None:
    """Check a new snapshot's name. Raises `ConfigError`."""
    if name is not None and (not NAME.fullmatch(name) or name.startswith(UNNAMED)):
        raise ConfigError(
            f"A snapshot cannot be named {name!r}; use up to 64 letters, digits, '-' and '_', and do not begin with "
            f"{UNNAMED!r}."
        )
