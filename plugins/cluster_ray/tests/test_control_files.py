"""`ale cluster scale` and a run talk by files: each request is served once, or refused with the run's sentence."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ale.errors import ConfigError
from ale.store.run_store import lock_folder
from ale_ray import control_files as control
from ale_ray.command import cluster_app
from ale_ray.control_files import read_roles, request_scale, row_of, serve_scale_requests, write_json


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run looks for requests often."""
    monkeypatch.setattr(control, "LOOK_S", 0.01)


async def test_a_request_is_served_and_leaves_no_file(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    async def scale(role: str, count: int) -> str:
        asked.append((role, count))
        return "done so"

    serving = asyncio.create_task(serve_scale_requests(tmp_path, scale))
    said = await asyncio.to_thread(request_scale, tmp_path, "engine", 3)
    serving.cancel()
    assert said == "done so"
    assert asked == [("engine", 3)]
    assert os.listdir(tmp_path) == []


async def test_the_runs_refusal_is_raised(tmp_path: Path) -> None:
    async def scale(role: str, count: int) -> str:
        raise ConfigError("There is no room.")

    serving = asyncio.create_task(serve_scale_requests(tmp_path, scale))
    with pytest.raises(ConfigError, match=r"There is no room\."):
        await asyncio.to_thread(request_scale, tmp_path, "engine", 3)
    serving.cancel()


async def test_a_request_that_fails_in_an_unforeseen_way_is_answered_and_the_next_one_is_served(tmp_path: Path) -> None:
    async def scale(role: str, count: int) -> str:
        if count == 3:
            raise ZeroDivisionError("by nothing")
        return "done so"

    serving = asyncio.create_task(serve_scale_requests(tmp_path, scale))
    with pytest.raises(ConfigError, match=r"The run could not do it: ZeroDivisionError: by nothing\."):
        await asyncio.to_thread(request_scale, tmp_path, "engine", 3)
    (tmp_path / "odd.request").write_text("{}")
    assert await asyncio.to_thread(request_scale, tmp_path, "engine", 2) == "done so"
    serving.cancel()


async def test_a_request_that_a_run_has_taken_when_it_ends_is_answered(tmp_path: Path) -> None:
    taken = asyncio.Event()

    async def scale(role: str, count: int) -> str:
        taken.set()
        await asyncio.Event().wait()
        return "never"

    serving = asyncio.create_task(serve_scale_requests(tmp_path, scale))
    asking = asyncio.create_task(asyncio.to_thread(request_scale, tmp_path, "engine", 3))
    await taken.wait()
    serving.cancel()
    with pytest.raises(ConfigError, match="The run has ended before it was done"):
        await asking
    assert os.listdir(tmp_path) == []


async def test_a_request_waits_for_its_turn_while_the_run_serves_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, taken, notes, go_on = [], asyncio.Event(), [], asyncio.Event()

    async def scale(role: str, count: int) -> str:
        taken.set()
        await go_on.wait()
        done.append(count)
        return f"now {count}"

    (tmp_path / "of a run that was killed.taken").touch()
    serving = asyncio.create_task(serve_scale_requests(tmp_path, scale))
    first = asyncio.create_task(asyncio.to_thread(request_scale, tmp_path, "engine", 3, notes.append))
    await taken.wait()
    second = asyncio.create_task(asyncio.to_thread(request_scale, tmp_path, "engine", 2, notes.append))
    while not notes:  # noqa: ASYNC110 - it is noted in a thread
        await asyncio.sleep(0.01)
    with monkeypatch.context() as patch:  # before and after that, a busy machine may take as long to look at it
        patch.setattr(control, "TAKEN_S", 0.5)
        await asyncio.sleep(1)
    assert (done, second.done()) == ([], False)
    go_on.set()
    assert [await first, await second] == ["now 3", "now 2"]
    assert done == [3, 2]
    assert notes == ["The run is busy with another change; this one waits for its turn."]
    serving.cancel()
    assert os.listdir(tmp_path) == []


def test_without_a_run_a_request_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "TAKEN_S", 0.3)
    with pytest.raises(ConfigError, match="No run answers"):
        request_scale(tmp_path, "engine", 3)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_roles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run on a cluster"):
        read_roles(tmp_path / "cluster")
    write_json(tmp_path / "cluster" / "roles.json", {"roles": []})
    assert read_roles(tmp_path / "cluster") == {"roles": []}


def test_a_run_whose_process_has_ended_is_not_shown_as_running_and_engines_with_their_parts(tmp_path: Path) -> None:
    roles = tmp_path / "cluster" / "roles.json"
    lock = lock_folder(tmp_path)
    rows = [row_of("engine", f"mixed {n}", "4f3a2b1c", 7, "cpu", "serving", 2) | {"part": f"vllm {n}"} for n in (0, 1)]
    write_json(roles, {"state": "running", "host": socket.gethostname(), "roles": rows})
    assert read_roles(roles.parent)["state"] == "running"
    os.close(lock)  # as the kernel does when the process ends
    assert read_roles(roles.parent)["state"] == "killed"
    shown = CliRunner().invoke(cluster_app, ["status", str(tmp_path)])
    assert "Its process has ended without a word" in shown.stdout
    assert "mixed 1 (vllm 1)" in shown.stdout
    began = time.monotonic()
    with pytest.raises(ConfigError, match="No run answers"):
        request_scale(roles.parent, "engine", 3)
    assert time.monotonic() - began < control.TAKEN_S, "it is known at once"
    write_json(roles, {"state": "running", "host": "another", "roles": []})
    assert read_roles(roles.parent)["state"] == "running", "its lock is not seen from here"
