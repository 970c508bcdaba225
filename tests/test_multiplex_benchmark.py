"""What the benchmark of multiplexing measures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
WORK = """
import time
while time.process_time() < 0.2: pass
print("worked", flush=True)
input()
"""


@pytest.fixture
def worker() -> Iterator[psutil.Popen]:
    """A process that has used the processor, and ends when it is told to."""
    process = psutil.Popen([sys.executable, "-c", WORK], stdin=-1, stdout=-1, text=True)
    yield process
    process.communicate()


def test_what_a_process_has_used_counts_also_after_it_has_ended_and_only_once(
    worker: psutil.Popen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from multiplex import Spent

    spent = Spent()
    worker.stdout.readline()
    process = psutil.Process(worker.pid)
    spent.look("Ray", [process])
    before = dict(spent.seconds)
    assert before["Ray"] >= 0.1
    spent.look("core 1", [process, process])  # it has been recognised as an engine
    assert spent.seconds["Ray"] == before["Ray"]
    assert spent.seconds["core 1"] < 0.1, "only what it has used since then"
    worker.communicate("\n")
    spent.look("Ray", [process])
    spent.look("core 1", [])
    assert spent.seconds["Ray"] == before["Ray"]
    assert sum(spent.seconds.values()) >= sum(before.values())
