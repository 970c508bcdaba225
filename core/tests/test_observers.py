"""Observers of a run: started before it, closed after it, and no part of what it depends on."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ale.errors import PluginError
from ale.registry.observers import open_observers
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext

SOURCE = """
from pathlib import Path
from ale.specs.events import Observer, hookimpl

class Calm(Observer):
    @hookimpl
    def ale_run_finished(self, run_id): ...
    async def close(self): Path(__file__).with_name("closed").touch()

class NeverCloses(Calm):
    async def close(self): raise RuntimeError("spam")

class NeverStarts(Calm):
    async def start(self): raise RuntimeError("spam")
"""


@pytest.fixture
def choices(tmp_path: Path) -> dict[str, PluginChoice]:
    file = tmp_path / "my_observers.py"
    file.write_text(SOURCE)
    return {name: PluginChoice(use=f"{file}:{name}") for name in ("Calm", "NeverCloses", "NeverStarts")}


async def test_one_that_cannot_close_is_logged_and_the_others_are_closed(
    choices: dict[str, PluginChoice], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        chosen = [choices["Calm"], choices["NeverCloses"]]
        hooks = await open_observers(chosen, DriverContext(), stack, allowed=None)
        hooks.call("ale_run_finished", run_id="r")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "NeverCloses' failed in close: RuntimeError: spam" in caplog.text
    assert (tmp_path / "closed").exists()


async def test_one_that_cannot_start_refuses_the_run_by_its_name(choices: dict[str, PluginChoice]) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(PluginError, match=r"observers\.0: .*NeverStarts' cannot start: RuntimeError: spam"):
            await open_observers([choices["NeverStarts"]], DriverContext(), stack, allowed=None)


async def test_those_that_the_environment_leaves_out_are_not_even_built(
    choices: dict[str, PluginChoice], caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        await open_observers([choices["NeverStarts"]], DriverContext(), stack, allowed=frozenset({"Calm"}))
    assert "ALE_PLUGINS leaves the observer" in caplog.text
