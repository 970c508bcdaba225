"""Functions of a user's file: found or refused with a sentence, called by names, and stopped when out of time."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from ale.errors import ConfigError, SandboxError
from ale.registry.user_functions import FunctionFailed, call_function, load_function, pick_arguments

SOURCE = """
from __future__ import annotations
from dataclasses import dataclass
import threading, time

@dataclass
class Point:
    x: int

def plain(completion, answer="none"):
    return completion, answer, threading.current_thread() is threading.main_thread()

async def waits(completion):
    return completion

def hidden_async(completion):
    return waits(completion)

def everything(completion, *args, **kwargs):
    return sorted(kwargs)

def fails(completion):
    raise ValueError("no good")

def exits():
    raise SystemExit(3)

def lost():
    from ale.errors import SandboxError
    raise SandboxError("gone")

def endless():
    while True:
        pass

async def sleeps():
    import asyncio
    await asyncio.sleep(60)

def stops():
    raise StopIteration

def ctrl_c():
    raise KeyboardInterrupt

def cancelled():
    import asyncio
    raise asyncio.CancelledError

async def cancelled_async():
    import asyncio
    raise asyncio.CancelledError

async def cancels_itself():
    import asyncio
    asyncio.current_task().cancel()
    await asyncio.sleep(0)

async def exits_async():
    raise SystemExit(3)

async def closed():
    raise GeneratorExit

def only_position(completion, /):
    return 1

NOT_A_FUNCTION = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_function_is_found_in_a_file_in_both_forms_and_the_file_runs_once(file: Path) -> None:
    first, second = load_function("plain", file), load_function(f"{file}:plain")
    assert first.function is second.function
    assert first.where == f"plain of {file}"
    assert list(first.parameters) == ["completion", "answer"]


def test_a_changed_file_is_imported_anew_and_its_neighbours_can_be_imported(file: Path, tmp_path: Path) -> None:
    old = load_function("plain", file)
    (tmp_path / "neighbour_of_mine.py").write_text("VALUE = 7\n")
    file.write_text("def plain():\n    import neighbour_of_mine\n    return neighbour_of_mine.VALUE\n")
    new = load_function("plain", file)
    assert new.function is not old.function
    assert new.function() == 7


def test_a_function_of_a_module_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_module_of_this_test.py").write_text("def score():\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    assert load_function("a_module_of_this_test:score").function() == 1


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("gone.py:plain", "there is no file gone.py"),
        ("plain", "the function 'plain' needs a place: add 'path' with its file, or write file.py:plain"),
        (":plain", "needs a place"),
        ("no_such_module_x:plain", "the module 'no_such_module_x' cannot be imported: ModuleNotFoundError"),
        ("{file}:plian", "has no function 'plian'. Did you mean 'plain'? It has: "),
        ("{file}:NOT_A_FUNCTION", "has no function, but something else, under the name 'NOT_A_FUNCTION'"),
        ("{file}:Point", "something else"),
        ("{file}:only_position", "remove the '/' after it"),
    ],
)
def test_a_wrong_name_is_a_sentence(file: Path, function: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_function(function.format(file=file))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def score(:\n", "SyntaxError"),
        ("import no_such_thing_x\n", "ModuleNotFoundError: No module named 'no_such_thing_x' (broken.py, line 1)"),
        ("\nraise SystemExit\n", "SystemExit: SystemExit (broken.py, line 2)"),
    ],
)
def test_a_file_that_cannot_be_imported_is_a_sentence(tmp_path: Path, source: str, sentence: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"broken\.py cannot be imported") as caught:
            load_function("score", path)
        assert sentence in str(caught.value)


def test_a_function_gets_what_it_names_and_all_with_kwargs(file: Path) -> None:
    offered = {"completion": "c", "answer": "a", "task": 1}
    assert pick_arguments(load_function("waits", file), offered) == {"completion": "c"}
    assert pick_arguments(load_function("everything", file), offered) == offered
    assert pick_arguments(load_function("plain", file), {"completion": "c"}) == {"completion": "c"}
    with pytest.raises(ConfigError, match=r"takes 'completion', which nothing provides\. Did you mean 'completions'\?"):
        pick_arguments(load_function("plain", file), {"completions": "c"})


async def test_plain_and_async_functions_are_called_off_the_loop(file: Path) -> None:
    assert await call_function(load_function("plain", file), {"completion": "c"}, 5) == ("c", "none", False)
    assert await call_function(load_function("waits", file), {"completion": "c"}, 5) == "c"
    assert await call_function(load_function("hidden_async", file), {"completion": "c"}, 5) == "c"
    assert await call_function(load_function("everything", file), {"completion": "c", "b": 1}, 5) == ["b"]


async def test_what_a_function_raises_names_it_and_the_line(file: Path) -> None:
    with pytest.raises(FunctionFailed, match=r"fails of .*mine\.py raised ValueError: no good \(mine\.py, line 23\)\."):
        await call_function(load_function("fails", file), {"completion": ""}, 5)
    of = {"exits": "SystemExit: 3", "stops": "StopIteration", "ctrl_c": "KeyboardInterrupt"}
    of |= {"cancelled": "CancelledError", "cancelled_async": "CancelledError", "cancels_itself": "CancelledError"}
    of |= {"exits_async": "SystemExit: 3", "closed": "GeneratorExit"}
    for name, error in of.items():
        with pytest.raises(FunctionFailed, match=f"{name} of .* raised {error}"):
            await call_function(load_function(name, file), {}, 5)
    with pytest.raises(SandboxError, match="gone"):
        await call_function(load_function("lost", file), {}, 5)


async def test_a_function_out_of_time_is_stopped_and_its_thread_ends(file: Path) -> None:
    before = threading.active_count()
    for name in ("endless", "sleeps"):
        began = time.monotonic()
        with pytest.raises(FunctionFailed, match=r"was stopped: it did not end within 0\.1 s\."):
            await call_function(load_function(name, file), {}, 0.1)
        assert time.monotonic() - began < 30, "neither ends by itself before"
    for _ in range(600):
        if threading.active_count() <= before:
            break
        await asyncio.sleep(0.05)
    assert threading.active_count() <= before


async def test_cancelling_reaches_the_function(file: Path) -> None:
    for name in ("endless", "sleeps"):
        task = asyncio.create_task(call_function(load_function(name, file), {}, 60))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
