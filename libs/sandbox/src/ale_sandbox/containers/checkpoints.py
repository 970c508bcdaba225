"""Checkpoints, which are snapshots with running processes: `ale-checkpoint:NAME`, each a folder below the state folder.

They belong to the user, as images do. A named one stays until it is removed. An unnamed one is removed when its
provider closes, or at the next start if the provider was killed. A folder being written is named after the writing
process."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale.specs.sandbox import SandboxSpec
from ale_sandbox.containers.image_snapshots import UNNAMED, check_name
from ale_sandbox.host.owned_folders import is_running, remove_folder, this_process

PREFIX, ARCHIVE, ABOUT, DRAFT = "ale-checkpoint:", "archive.tar", "about.json", ".draft-"
FREE = ("id", "image", "from_snapshot", "endpoint", "files", "env", "labels", "lifetime_s", "idle_s")
"""Fields of the spec that may differ in a sandbox started from a checkpoint; all others must be the same."""


@dataclass(frozen=True)
class Checkpoint:
    """An existing checkpoint."""

    name: str
    archive: Path
    spec: dict[str, Any]
    """The spec that its sandbox was started with, without the fields in `FREE`."""
    owner: str | None
    """The process that owns an unnamed checkpoint; None for a named one."""


@dataclass(frozen=True)
class Draft:
    """A checkpoint that is being written."""

    name: str
    folder: Path
    archive: Path


class CheckpointStore:
    """The checkpoints of this user. All calls block."""

    def __init__(self, state_folder: Path) -> None:
        self.folder = state_folder / "checkpoints"
        self.own: set[str] = set()
        """Unnamed checkpoints, which are removed when their provider closes."""

    def names(self) -> list[str]:
        """List all checkpoints."""
        return sorted(PREFIX + path.parent.name for path in self.folder.glob(f"[!.]*/{ABOUT}"))

    def find(self, name: str) -> Checkpoint:
        """Find a checkpoint by name. Raises `ConfigError` if there is none."""
        folder = self.folder / name.removeprefix(PREFIX)
        try:
            if folder.parent != self.folder:
                raise FileNotFoundError
            about = json.loads((folder / ABOUT).read_text())
            return Checkpoint(name, folder / ARCHIVE, dict(about["spec"]), about["owner"])
        except (OSError, ValueError, KeyError, TypeError):
            known = ", ".join(self.names()[:20]) or "none"
            raise ConfigError(f"There is no snapshot {name}; the snapshots with processes are: {known}.") from None

    def draft(self, name: str | None) -> Draft:
        """Begin a new checkpoint. Raises `ConfigError` if the name is not allowed."""
        check_name(name)
        folder = self.folder / f"{DRAFT}{this_process()}-{secrets.token_hex(4)}"
        folder.mkdir(mode=0o700, parents=True)
        return Draft(name or UNNAMED + secrets.token_hex(8), folder, folder / ARCHIVE)

    def keep(self, draft: Draft, spec: SandboxSpec) -> str:
        """Give a written draft its name, replacing any older one; sandboxes started from that keep running."""
        owner = this_process() if draft.name.startswith(UNNAMED) else None
        (draft.folder / ABOUT).write_text(json.dumps({"spec": fixed_fields(spec), "owner": owner}))
        place = self.folder / draft.name
        if place.exists():
            os.rename(place, f"{draft.folder}-old")
        os.rename(draft.folder, place)
        self.drop(draft)
        if owner is not None:
            self.own.add(PREFIX + draft.name)
        return PREFIX + draft.name

    def drop(self, draft: Draft) -> None:
        """Remove what is left of a draft. Idempotent."""
        for path in (draft.folder, Path(f"{draft.folder}-old")):
            if path.exists():
                remove_folder(path)

    def remove(self, name: str) -> None:
        """Remove a checkpoint. Idempotent."""
        folder = self.folder / name.removeprefix(PREFIX)
        if folder.parent == self.folder and (folder / ABOUT).exists():
            remove_folder(folder)
        self.own.discard(name)

    def sweep(self) -> None:
        """Remove the drafts and unnamed checkpoints of processes that have ended."""
        for path in self.folder.glob(f"{DRAFT}*"):
            if not is_running("-".join(path.name.removeprefix(DRAFT).split("-")[:2])):
                remove_folder(path)
        for name in self.names():
            try:
                owner = self.find(name).owner
            except ConfigError:  # another process removed it meanwhile, or it cannot be read
                continue
            if owner is not None and not is_running(owner):
                self.remove(name)

    def close(self) -> None:
        """Remove the unnamed checkpoints that this process made. Idempotent."""
        for name in list(self.own):
            self.remove(name)


def fixed_fields(spec: SandboxSpec) -> dict[str, Any]:
    """The fields of a spec that running processes depend on."""
    return spec.model_dump(mode="json", exclude=set(FREE))


def check_same(checkpoint: Checkpoint, spec: SandboxSpec) -> None:
    """Check that a spec fits the processes of a checkpoint. Raises `ConfigError` if it does not."""
    asked = fixed_fields(spec)
    other = sorted(field for field in asked if asked[field] != checkpoint.spec.get(field))
    if other:
        raise ConfigError(
            f"The snapshot {checkpoint.name} holds processes of a sandbox with another {' and another '.join(other)}; "
            "start from it with the same values, or from a snapshot without processes."
        )
