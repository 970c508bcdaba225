"""Which files of the control groups get which limits; the real ones are tested in `test_isolation.py`."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from ale.specs.sandbox import Resources
from ale_local import cgroups

LIMITS = Resources(cpus=1.5, memory_mib=64, pids=20, disk_mib=None)


def test_version_1_and_2_name_their_limits_differently() -> None:
    old = {file: value for _, file, value in cgroups.settings(LIMITS, unified=False)}
    assert old["memory.limit_in_bytes"] == old["memory.memsw.limit_in_bytes"] == str(64 << 20)
    assert (old["pids.max"], old["cpu.cfs_quota_us"]) == ("20", "150000")
    new = {file: value for _, file, value in cgroups.settings(LIMITS, unified=True)}
    assert new == {"memory.max": str(64 << 20), "memory.swap.max": "0", "pids.max": "20", "cpu.max": "150000 100000"}


def test_limits_that_are_null_are_not_written() -> None:
    assert cgroups.settings(Resources(cpus=None, memory_mib=None, pids=None, disk_mib=None), unified=True) == []


def test_version_2_has_one_group_for_everything(tmp_path: Path) -> None:
    for name in ("cgroup.controllers", "cgroup.subtree_control"):
        (tmp_path / name).touch()
    parents = cgroups.parents(tmp_path)
    assert set(parents.values()) == {tmp_path / "ale"}
    assert (tmp_path / "ale" / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert cgroups.create(parents, "one", LIMITS) == [str(tmp_path / "ale" / "one")]


def test_where_nothing_may_be_written_there_are_no_groups(tmp_path: Path) -> None:
    assert cgroups.parents(tmp_path / "missing") == {}
    assert cgroups.create({}, "one", LIMITS) == []


def test_removing_what_is_gone_is_no_error(tmp_path: Path) -> None:
    cgroups.remove([str(tmp_path / "gone")], time.monotonic() + 1)


def test_removing_what_another_process_removes_at_the_same_time_is_no_error(tmp_path: Path) -> None:
    (ended := subprocess.Popen(["true"])).wait()
    for name, processes in (("without-its-list", None), ("with-one-that-has-ended", f"{ended.pid}\n")):
        (group := tmp_path / name).mkdir()
        (group / "busy").touch()  # so that the folder cannot be removed
        if processes is not None:
            (group / "cgroup.procs").write_text(processes)
        cgroups.remove([str(group)], time.monotonic() + 0.01)


def test_stats_of_version_2(tmp_path: Path) -> None:
    for name, text in (("memory.current", "10\n"), ("pids.current", "3\n"), ("cpu.stat", "usage_usec 2500000\n")):
        (tmp_path / name).write_text(text)
    stats = cgroups.read_stats([str(tmp_path)])
    assert (stats.memory_bytes, stats.cpu_s, stats.pids) == (10, 2.5, 3)
