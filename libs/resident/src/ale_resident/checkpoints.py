"""Snapshots with processes in them: `ale-checkpoint:NAME`, a folder each below the state folder, with what the engine wrote.

They are the user's, as images are: one with a name stays until it is removed; one without goes with its provider, and where
that was killed, with the next start. A folder that is being written is named after the process that does it.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale.specs.sandbox import SandboxSpec
from ale_resident.image_snapshots import UNNAMED, check_name
from ale_resident.owner import remove_folder, runs, this_process

PREFIX, ARCHIVE, ABOUT, DRAFT = "ale-checkpoint:", "archive.tar", "about.json", ".draft-"
FREE = ("id", "image", "from_snapshot", "endpoint", "files", "env", "labels", "lifetime_s", "idle_s")
"""What may be another in a sandbox that is started from a checkpoint; the rest is as it was."""


@dataclass(frozen=True)
class Checkpoint:
    """One that there is."""

    name: str
    archive: Path
    spec: dict[str, Any]
    """What its sandbox was started with, but for `FREE`."""
    owner: str | None
    """The process with which an unnamed one goes."""


@dataclass(frozen=True)
class Draft:
    """One in the making."""

    name: str
    folder: Path
    archive: Path


class Checkpoints:
    """Those of this user. All calls block."""

    def __init__(self, state_folder: Path) -> None:
        self.folder = state_folder / "checkpoints"
        self.own: set[str] = set()
        """Those that go when their provider is closed."""

    def names(self) -> list[str]:
        """All of them."""
        return sorted(PREFIX + path.parent.name for path in self.folder.glob(f"[!.]*/{ABOUT}"))

    def find(self, name: str) -> Checkpoint:
        """One of them. Raises `ConfigError` where there is none."""
        folder = self.folder / name.removeprefix(PREFIX)
        try:
            if folder.parent != self.folder:
                raise FileNotFoundError
            about = json.loads((folder / ABOUT).read_text())
            return Checkpoint(name, folder / ARCHIVE, dict(about["spec"]), about["owner"])
        except (OSError, ValueError, KeyError, TypeError):
            known = ", ".join(self.names()[:20]) or "none"
            raise ConfigError(f"There is no snapshot {name}; with processes there are these: {known}.") from None

    def draft(self, name: str | None) -> Draft:
        """A new one, to be written. Raises `ConfigError` where it cannot be called so."""
        check_name(name)
        folder = self.folder / f"{DRAFT}{this_process()}-{secrets.token_hex(4)}"
        folder.mkdir(mode=0o700, parents=True)
        return Draft(name or UNNAMED + secrets.token_hex(8), folder, folder / ARCHIVE)

    def keep(self, draft: Draft, spec: SandboxSpec) -> str:
        """It has been written: put it in the place of one that has its name. What runs from that one goes on."""
        owner = this_process() if draft.name.startswith(UNNAMED) else None
        (draft.folder / ABOUT).write_text(json.dumps({"spec": lasting(spec), "owner": owner}))
        place = self.folder / draft.name
        if place.exists():
            os.rename(place, f"{draft.folder}-old")
        os.rename(draft.folder, place)
        self.drop(draft)
        if owner is not None:
            self.own.add(PREFIX + draft.name)
        return PREFIX + draft.name

    def drop(self, draft: Draft) -> None:
        """Remove what is left of one that was being made. Idempotent."""
        for path in (draft.folder, Path(f"{draft.folder}-old")):
            if path.exists():
                remove_folder(path)

    def remove(self, name: str) -> None:
        """Remove one. Idempotent."""
        folder = self.folder / name.removeprefix(PREFIX)
        if folder.parent == self.folder and (folder / ABOUT).exists():
            remove_folder(folder)
        self.own.discard(name)

    def sweep(self) -> None:
        """Remove what dead owners left."""
        for path in self.folder.glob(f"{DRAFT}*"):
            if not runs("-".join(path.name.removeprefix(DRAFT).split("-")[:2])):
                remove_folder(path)
        for name in self.names():
            owner = self.find(name).owner
            if owner is not None and not runs(owner):
                self.remove(name)

    def close(self) -> None:
        """Remove those without a name that this process made. Idempotent."""
        for name in list(self.own):
            self.remove(name)


def lasting(spec: SandboxSpec) -> dict[str, Any]:
    """What of a spec processes are bound to."""
    return spec.model_dump(mode="json", exclude=set(FREE))


def check_same(checkpoint: Checkpoint, spec: SandboxSpec) -> None:
    """See that a spec asks for what the checkpoint's processes have. Raises `ConfigError`."""
    asked = lasting(spec)
    other = sorted(field for field in asked if asked[field] != checkpoint.spec.get(field))
    if other:
        raise ConfigError(
            f"The snapshot {checkpoint.name} holds processes of a sandbox with another {' and another '.join(other)}; "
            "start from it with what that one had, or from a snapshot without processes."
        )
