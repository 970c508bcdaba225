"""This plugin remembers which tests were skipped, so that they can run later where what they need is present.

1. Every run of pytest writes its skipped tests into pytest's cache.
2. `pytest --skipped` runs only these. A test that is skipped again fails, unless it is marked `gpu`. With this, CI
   shows that every test ran, on a machine without container engines or on one with them.

Processes get tests by the file, since tests of a file share what they need; but each run of the conformance kit is a
part of its own, as is each example with a server, and so are the tests of a file with Docker and those with Podman,
which mostly wait.

It also lets Hypothesis take its time: its limits for an example (200 ms) and for making data measure how busy the
machine is, and a test that fails by them says nothing about the code.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TOGETHER = ("tests/security/", "plugins/cluster_ray/")
"""Attacks take all of a user's share of a host, so that two at once hinder each other; and one process imports what all
of Ray's workers need."""
KEY = "ale/skipped"
SKIPPED = pytest.StashKey[set[str]]()
"""The tests that the last run skipped."""
SKIPPED_FILES = pytest.StashKey[set[Path]]()
# Tests run in parallel, and torch threads that wait for each other would only take time from other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # until all tests are collected: a fifth of that time went into looking for garbage in modules
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--skipped`."""
    text = "run the tests that the last run skipped; one that is skipped again is a failure, unless it wants a GPU"
    parser.addoption("--skipped", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin in the first process only; the processes of pytest-xdist report to it."""
    if config.getoption("--skipped"):
        assert config.cache is not None, "--skipped reads pytest's cache"
        config.stash[SKIPPED] = skipped = set(config.cache.get(KEY, []))
        config.stash[SKIPPED_FILES] = {config.rootpath / name.partition("::")[0] for name in skipped}
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skipped(config), "ale-skipped")


@pytest.fixture(scope="session", autouse=True)
def _launchers() -> Iterator[None]:
    """Groups of ranks are forked from a process that has imported what they need, once for all tests."""
    try:
        from ale_torch.ranks import keep_launchers
    except ImportError:  # tests of a package that needs no ranks, where it is installed alone
        yield
        return
    with keep_launchers():
        yield


class Skipped:
    """Records what is skipped."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.found: set[str] = set()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record modules that are skipped as a whole."""
        if report.skipped:
            self.found.add(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record skipped tests, but not expected failures: pytest counts these as skipped although they ran."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self.found.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the skipped tests into the cache, unless this run was `--skipped` or was of the last failures only."""
        cache = getattr(self.config, "cache", None)  # `-p no:cacheprovider` removes it, and `lf` too
        skipped, failed = self.config.getoption("--skipped"), self.config.getoption("lf", False)
        if cache is not None and not (skipped or failed):
            cache.set(KEY, sorted(self.found))
        if skipped and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # nothing was skipped, so nothing is left to run


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of which nothing was skipped."""
    if not config.getoption("--skipped") or collection_path.suffix != ".py":
        return None
    return collection_path not in config.stash[SKIPPED_FILES] or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the tests that the last run skipped."""
    if not config.getoption("--skipped"):
        return
    wanted = config.stash[SKIPPED]
    here = {item: bool({item.nodeid, item.nodeid.partition("::")[0]} & wanted) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not here[item]])
    items[:] = [item for item in items if here[item]]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What was imported stays: from now on nobody looks for garbage in it, and rarely elsewhere, as in `ale`."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return what hands tests to processes. pytest-xdist need not be there."""
    from xdist.scheduler import LoadScopeScheduling

    class Parts(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            if file.startswith(("tests/conformance/test_our_", "tests/test_engine_examples.py")):
                return nodeid
            for folder in TOGETHER:
                if file.startswith(folder):
                    return folder
            return " ".join([file, *(engine for engine in ("docker", "podman") if engine in test)])

    return Parts(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Make a test fail if a run with `--skipped` skips it again."""
    report = yield
    return report if item.get_closest_marker("gpu") else strict(report, item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Make a whole module fail if a run with `--skipped` skips it again."""
    report = yield
    return strict(report, collector.config)


def strict(report: Any, config: pytest.Config) -> Any:
    """Return the report; with `--skipped`, a skip becomes a failure."""
    if config.getoption("--skipped") and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"It was skipped again: {report.longrepr[2]}"
    return report
