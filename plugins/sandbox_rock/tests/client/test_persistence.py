"""ROCK's own client stops, restarts, archives and commits sandboxes, whose files are really there afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from rock.actions import Command
from rock.sdk.common.exceptions import BadRequestRockError
from service_process import StartSandbox

pytestmark = pytest.mark.bwrap
PLACES = ("kept", "/tmp/kept")


async def write(box: Any, text: str) -> None:
    """Write a text into the work folder and beside it."""
    done = await box.execute(Command(command=["sh", "-c", f"for f in {' '.join(PLACES)}; do echo {text} > $f; done"]))
    assert done.exit_code == 0, done


async def read(box: Any) -> str:
    """Return what is there."""
    done = await box.execute(Command(command=["cat", *PLACES]))
    assert isinstance(done.stdout, str)
    return done.stdout


async def test_a_stopped_sandbox_is_restarted_with_its_files(start: StartSandbox) -> None:
    box = await start(auto_delete_seconds=3600)
    for text in ("first", "second"):
        await write(box, text)
        await box.stop()
        assert (await box.get_status(include_all_states=True)).state == "stopped"
        await box.restart()
        assert (await box.get_status()).is_alive
        assert await read(box) == f"{text}\n" * 2


async def test_a_sandbox_whose_files_were_not_kept_says_so(start: StartSandbox) -> None:
    box = await start()
    await box.stop()
    for refused in (box.restart, box.archive):
        with pytest.raises(BadRequestRockError, match="No files of the sandbox"):
            await refused()


async def test_an_archived_sandbox_is_restarted_with_its_files(start: StartSandbox) -> None:
    box = await start(auto_archive_seconds=3600)
    await write(box, "kept")
    for refused in (box.archive, box.delete):
        with pytest.raises(BadRequestRockError, match="is running"):
            await refused()
    await box.stop()
    await box.archive()
    with pytest.raises(BadRequestRockError, match="is archived"):
        await box.archive()
    status = await box.get_status(include_all_states=True)
    assert (status.state, status.is_alive) == ("archived", False)
    assert status.archive_time
    await box.restart()
    assert await read(box) == "kept\n" * 2
    await box.stop()
    await box.archive()
    for _ in range(2):
        await box.delete()
    assert (await box.get_status(include_all_states=True)).state == "deleted"


async def test_a_sandbox_starts_from_an_image_that_was_committed(start: StartSandbox) -> None:
    box = await start()
    await write(box, "committed")
    done = await box.commit("image:1", "user", "secret-of-a-registry", timeout=60)
    assert done is not None
    assert (done.phase, done.exit_code, done.image_tag) == ("SUCCEEDED", 0, "image:1")
    assert await box.get_commit_status() == done
    await write(box, "later")
    fork = await start(image="image:1")
    assert await read(fork) == "committed\n" * 2


async def test_a_deleted_sandbox_leaves_no_snapshot(start: StartSandbox) -> None:
    from ale_local.snapshot_store import SnapshotStore
    from ale_sandbox.host.owned_folders import state_folder

    layers = SnapshotStore(state_folder("local"))
    before = set(layers.names())
    box = await start(auto_delete_seconds=3600)
    await box.stop()
    assert len(set(layers.names()) - before) == 1
    await box.delete()
    assert set(layers.names()) <= before
