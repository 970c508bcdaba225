"""The folder of the snapshots: what is in use or has a name stays, and what nobody holds is removed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale.specs.sandbox import SandboxSpec
from ale_local import LocalSandbox, LocalSandboxProvider
from ale_local.snapshot_store import SnapshotStore

from .conftest import layers


def published(store: SnapshotStore, name: str | None) -> tuple[str, Path]:
    """A snapshot with nothing in it, and its folder."""
    draft = store.draft()
    name = store.publish(draft, name, form="layer", places=("/tmp",), uid_base=0, size=0)
    store.release(draft)
    found = store.read(name)
    assert found is not None
    return name, store.folder / found.folder


def test_what_is_in_use_stays_until_it_is_let_go() -> None:
    store = layers()
    name, first = published(store, "one")
    held = layers().hold(name)
    _, second = published(store, "one")
    assert (first.exists(), second.exists()) == (True, True), "somebody runs from the first"
    held.close()
    layers().collect()
    assert (first.exists(), second.exists()) == (False, True)
    held = store.hold("one")
    assert held.path == second
    store.remove("one")
    assert store.names() == []
    assert second.exists()
    held.close()
    store.collect()
    assert not store.folder.exists()


def test_what_dead_processes_left_is_reclaimed_and_nothing_else() -> None:
    store = layers()
    named, _ = published(store, "named")
    mine, _ = published(store, None)
    theirs, _ = published(store, None)
    path = store.folder / f"{theirs}.json"
    path.write_text(path.read_text().replace(f'"owner": "{os.getpid()}-', '"owner": "999999-'))
    (store.folder / "part-999999-1-abc/0").mkdir(parents=True)
    drafted = store.draft()
    layers().reclaim()
    assert store.names() == sorted([named, mine])
    assert drafted.path.exists()
    assert not (store.folder / "part-999999-1-abc").exists()
    assert len(list(store.folder.glob("layer-*"))) == 2
    store.release(drafted)
    store.close()
    assert store.names() == [named]


def test_a_folder_that_is_locked_by_its_remover_is_not_stood_on() -> None:
    store = layers()
    published(store, "one")
    held = store.hold("one")
    with (held.path / "lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.close()
    store.remove("one")
    with pytest.raises(ConfigError, match="There is no snapshot 'one' of local sandboxes; the existing ones are: none"):
        store.hold("one")


@pytest.mark.parametrize("name", ["../x", "a/b", "", "x" * 65, "unnamed-1", ".hidden"])
async def test_bad_names_are_refused(box: LocalSandbox, wrapped: LocalSandboxProvider, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be named"):
        await box.snapshot(name)
    with pytest.raises(ConfigError, match="There is no snapshot"):
        await wrapped.start_sandbox(SandboxSpec(from_snapshot=name))
    await wrapped.remove_snapshot(name)
    assert await wrapped.snapshots() == []
