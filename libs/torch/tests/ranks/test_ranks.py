"""Ranks answer together, fail together, and end with their owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ale.errors import ConfigError, TrainerError
from ale.registry.user_files import import_file
from ale_torch.ranks import OneRank, Ranks, RanksLost, World, keep_launchers, launcher

MEMBER = "rank_member:Member"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks can import what their owner can; launchers that other tests have kept are not taken."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setattr(launcher, "_kept", None)


@pytest.fixture(scope="module")
def kept() -> Iterator[object]:
    """The launchers that the tests with a kept one share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "_kept", None)
        with keep_launchers():
            yield launcher._kept


@pytest.fixture(params=["a launcher each", "a launcher that is kept"])
def two(request: pytest.FixtureRequest, kept: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    if "kept" in request.param:
        monkeypatch.setattr(launcher, "_kept", kept)
    ranks = Ranks(MEMBER, 2, ("hello",), threads=1, backend="gloo")
    yield ranks
    ranks.close()


def processes_of(ranks: Ranks) -> list[psutil.Process]:
    launched = psutil.Process(ranks._process.pid)
    return [launched, *launched.children(recursive=True)]


def test_each_rank_answers_and_all_know_of_each_other(two: Ranks) -> None:
    answers = two.call("describe", 10)
    assert [(rank, word, gathered) for rank, _, word, gathered in answers] == [(r, "hello", [10, 11]) for r in (0, 1)]
    assert len({os.getpid(), *(pid for _, pid, _, _ in answers)}) == 3
    offset = 5
    assert two.call("apply", lambda rank: rank + offset) == [5, 6], "also functions that no module has"


def test_ranks_take_objects_of_a_file_of_the_users(two: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "class Add:\n    def __init__(self, n): self.n = n\n    def __call__(self, rank): return rank + self.n\n"
    )
    assert two.call("apply", import_file(path).Add(3)) == [3, 4]


def test_what_all_raise_is_raised_and_they_go_on(two: Ranks) -> None:
    with pytest.raises(ZeroDivisionError, match="nothing to divide by") as raised:
        two.call("fail", 0, 1)
    assert any("in fail" in note for note in raised.value.__notes__)
    assert [rank for rank, *_ in two.call("describe", 0)] == [0, 1]


def test_if_only_some_fail_all_are_ended(two: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ale_torch.ranks.group.OTHERS_S", 0.2)
    running = processes_of(two)
    with pytest.raises(RanksLost, match=r"Rank 1 of 2 failed in 'fail'.*ZeroDivisionError: nothing") as raised:
        two.call("fail", 1)
    assert "as its library printed it" in str(raised.value)
    with pytest.raises(RanksLost, match="Rank 1 of 2 failed"):
        two.call("describe", 0)
    assert not psutil.wait_procs(running, 60)[1]


def test_a_rank_that_is_killed_is_an_error_and_not_a_wait(two: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ale_torch.ranks.group.OTHERS_S", 60)  # the other one's barrier fails, perhaps first
    running = processes_of(two)
    with pytest.raises(RanksLost, match="its process ended by SIGKILL"):
        two.call("kill", 0)
    assert not psutil.wait_procs(running, 60)[1]


def test_a_fault_of_what_is_read_is_raised_also_if_it_takes_some_ranks_longer_to_find_it(
    two: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale_torch.ranks.group.OTHERS_S", 0.1)
    with pytest.raises(ConfigError, match="damaged"):
        two.call("load", 0.7)
    assert [rank for rank, *_ in two.call("describe", 0)] == [0, 1], "they go on"


def test_a_rank_that_stopped_can_be_ended_from_another_thread(two: Ranks) -> None:
    running = processes_of(two)
    os.kill(two.call("describe", 0)[1][1], signal.SIGSTOP)
    timer = threading.Timer(0.2, two.kill)
    timer.start()
    with pytest.raises(TrainerError, match=r"The ranks were ended by force\.") as raised:
        two.call("describe", 0)
    assert type(raised.value) is TrainerError, "they were not lost: that is what was asked for"
    timer.join()
    two.kill()
    assert not psutil.wait_procs(running, 60)[1]  # a rank is its launcher's child: it may end a moment after it


def test_ranks_that_do_not_get_ready_can_be_ended_from_another_thread() -> None:
    def kill_soon(ranks: Ranks) -> None:
        threading.Timer(0.5, ranks.kill).start()

    with pytest.raises(TrainerError, match=r"The ranks were ended by force\."):
        Ranks(MEMBER, 2, ("stopped",), threads=1, backend="gloo", launched=kill_soon)


def test_a_constructor_that_fails_is_raised_and_leaves_nothing() -> None:
    before = set(psutil.Process().children(recursive=True))
    for target, error in ((MEMBER, ConfigError), ("no_such_module:Member", ModuleNotFoundError)):
        with pytest.raises(error, match=r"no such thing|no_such_module"):
            Ranks(target, 2, ("broken",), threads=1, backend="gloo")
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_launcher_that_is_kept_starts_groups_as_their_owner_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(psutil.Process().children(recursive=True))
    with keep_launchers():
        for word in ("first", "second"):
            monkeypatch.setenv("ALE_WORD", word)
            ranks = Ranks(MEMBER, 2, (word,), threads=1, backend="gloo")
            assert ranks.call("apply", lambda rank: os.environ["ALE_WORD"]) == [word, word]
            ranks.close()
        while len(started := set(psutil.Process().children(recursive=True)) - before) > 1:
            time.sleep(0.01)  # a group that has ended may be listed a moment longer
        (kept,) = started
        kept.kill()
        kept.wait()
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            Ranks("no_such_module:Member", 2, threads=1, backend="gloo")
        ranks = Ranks(MEMBER, 1, threads=1, backend="gloo")
        assert ranks.call("describe", 4)[0][3] == [4], "another takes the place of one that was killed"
        ranks.close()
    assert not psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, 60)[1]


def test_ranks_end_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    code = (
        f"import sys, time; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from ale_torch.ranks import Ranks\n"
        f"ranks = Ranks({MEMBER!r}, 2, threads=1, backend='gloo')\n"
        "print(*(answer[1] for answer in ranks.call('describe', 0)), flush=True)\n"
        "ranks.call('apply', lambda rank: time.sleep(600))"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) == 2
    owner.kill()
    owner.wait()
    until = time.monotonic() + 60
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < until, "a rank lives on"
        time.sleep(0.05)


def test_a_world_of_one_in_this_process_answers_alike() -> None:
    from rank_member import Member

    member = Member(World(), "here")
    one = OneRank(member)
    assert one.call("describe", 3) == [(0, os.getpid(), "here", [3])]
    one.close()
    assert member.word == "closed"
