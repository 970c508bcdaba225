"""A name is downloaded when the run starts, by a process that ends with it, and is then used without the hub."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ale.errors import ConfigError
from ale_train.models import download
from ale_train.models.named_model import check_model, fetch_model
from ale_train.workbench.channel import RunChannel


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    for _ in range(2400):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it does not come to hold within 120 s")


def is_downloading(hub: Any) -> bool:
    """Whether the weights are being asked for."""
    return any(
        request.startswith("GET /team/small/resolve/") and request.endswith(".safetensors") for request in hub.requests
    )


def children() -> set[str]:
    """The processes that this one has started."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


async def fetch(path: str | Path, revision: str | None = None) -> tuple[Path, list[str]]:
    """The folder, and the notes that the run showed."""
    notes: list[str] = []
    return await fetch_model(Path(path), revision, RunChannel(str, show=notes.append)), notes


@pytest.mark.parametrize("revision", [None, "v1"])
async def test_a_name_becomes_a_whole_folder_which_the_next_run_has_without_the_hub(
    hub: Any, revision: str | None
) -> None:
    folder, notes = await fetch("team/small", revision)
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    }
    assert (folder / "model.safetensors").read_bytes() == hub.whole["model.safetensors"]
    assert notes == [
        "Downloading team/small at 0123456789ab (0 MB).",
        f"The model team/small is {folder}.",
    ]
    hub.requests.clear()
    check_model(Path("team/small"), revision)
    assert await fetch("team/small", revision) == (folder, [f"The model team/small is {folder}."])
    assert hub.requests == []


async def test_a_folder_stays_what_it_is(tmp_path: Path, hub: Any) -> None:
    assert await fetch(tmp_path) == (tmp_path, [])


async def test_a_gated_model_is_downloaded_by_one_who_is_logged_in(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add("team/small")
    with pytest.raises(ConfigError, match="is gated"):
        await fetch("team/small")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    folder, _ = await fetch("team/small")
    assert (folder / "config.json").is_file()


async def test_a_download_says_how_far_it_is_and_a_cancelled_one_leaves_no_process(
    hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PROGRESS_S", 0.1)
    hub.slow_s = 30.0
    before, notes = children(), list[str]()
    running = asyncio.ensure_future(fetch_model(Path("team/small"), None, RunChannel(str, show=notes.append)))
    await until(lambda: is_downloading(hub) and len(notes) > 1)
    assert notes[1] == "team/small: 0 of 0 MB"
    assert children() - before
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert children() <= before
    hub.slow_s = 0.0
    folder, _ = await fetch("team/small")
    assert (folder / "model.safetensors").read_bytes() == hub.whole["model.safetensors"]


async def test_a_download_that_breaks_off_is_a_sentence(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ("config.json", "tokenizer.json", "model.safetensors")
    hub.status = 403
    with pytest.raises(ConfigError, match=r"team/small is not whole in the cache .*: .*403"):
        await download.download_model("team/small", None, found, 3000, lambda text: None)
    monkeypatch.setattr(download.sys, "executable", "/bin/false")
    with pytest.raises(ConfigError, match="the download of team/small broke off: its process ended with 1; try again"):
        await download.download_model("team/small", None, found, 3000, lambda text: None)


async def test_a_download_ends_when_its_run_is_killed(hub: Any) -> None:
    hub.slow_s = 30.0
    process = await asyncio.create_subprocess_exec(
        download.sys.executable,
        "-m",
        "ale_train.models.download",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    process.stdin.write(b'{"name": "team/small", "revision": null, "files": ["model.safetensors"]}\n')
    await until(lambda: is_downloading(hub))
    process.stdin.close()  # as the system does for a process that is no more
    assert await asyncio.wait_for(process.wait(), 60) == 1
