"""This plugin divides the tests: `make test` runs what a change can break, `make test-all` the rest.

1. `pytest --fast` leaves out the long proofs that `LONG` lists. Every run writes the tests that it skipped, because the
   machine lacks what they need, into pytest's cache.
2. `pytest --rest` runs the long proofs and what the last run skipped. With `--strict-skips` a test that is skipped
   again fails, unless it is marked `gpu`: so CI shows that every test ran.

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
LONG = {
    "benchmarks, chaos and faults over minutes": (
        "tests/test_chaos", "tests/test_stalls.py", "tests/test_killed_owners.py", "tests/test_multiplex_benchmark.py",
    ),
    "several processes that compute as one: ranks, Megatron, Ray": (
        "plugins/cluster_ray/tests/test_engine_places.py", "plugins/cluster_ray/tests/test_hanging.py",
        "plugins/cluster_ray/tests/test_lost_node.py", "plugins/cluster_ray/tests/test_ranks.py",
        "plugins/trainer_megatron/tests/", "plugins/trainer_torch/tests/test_ranks.py",
        "plugins/trainer_torch/tests/test_sleep.py", "plugins/trainer_torch/tests/test_optimizers.py",
        "plugins/trainer_torch/tests/test_lora.py", "plugins/sandbox_rock/tests/test_ray.py",
        "libs/torch/tests/ranks/", "libs/torch/tests/weights/", "tests/test_cluster.py", "tests/test_megatron.py",
        "tests/test_losses_in_another_process.py", "tests/test_transports.py",
        "tests/test_written_policies.py",
        "tests/conformance/test_our_ray_clusters.py",
    ),
    "servers of many models": (
        "plugins/engine_vllm/tests/test_vllm_model_shapes.py", "plugins/engine_sglang/tests/test_model_shapes.py",
    ),
    "packages as wheels and in environments of their own": (
        "tests/packaging/test_new_plugins.py", "tests/packaging/test_wheels.py", "tests/test_models_by_name.py",
        "tests/test_gpu_check.py",
        "plugins/env_loop/tests/test_openenv.py", "plugins/env_loop/tests/test_gem_and_skyrl.py",
        "plugins/track_mlflow/tests/", "plugins/track_wandb/tests/", "tests/test_trackers.py",
    ),
    "that the conformance kit finds wrong plugins: it tests the kit, which finds a wrong plugin of ours": (
        "tests/conformance/test_wrong_", "libs/testing/tests/",
    ),
    "pages of the docs, run as a reader would": (
        "tests/docs/test_data_page.py", "tests/docs/test_environments_page.py", "tests/docs/test_plugin_pages.py",
        "tests/docs/test_metrics_page.py", "tests/test_environment_runs.py", "tests/test_documented_agents.py",
    ),
    "services that are started and killed again and again": (
        "libs/endpoint/tests/serving/test_serve_command.py", "plugins/sandbox_rock/tests/test_provider.py",
        "plugins/sandbox_rock/tests/admin/test_restart.py", "plugins/sandbox_rock/tests/client/",
        "tests/conformance/test_our_rock_service.py",
    ),
    "runs that go on, beside runs that made all steps at once": ("tests/test_going_on.py", "tests/test_fork.py"),
    "experiments of several runs": ("plugins/lab/tests/test_lab_command.py", "plugins/lab/tests/test_make_runs.py"),
    "tasks solved one by one": (
        "plugins/tasks_bash/tests/test_demonstrations.py", "plugins/tasks_bash/tests/test_graded.py",
    ),
}  # fmt: skip
"""What `make test` leaves out, by why: beginnings of paths. Each proves at length what shorter tests check."""
KEY = "ale/skipped"
SKIPPED = pytest.StashKey[set[str]]()
"""The tests that the last run skipped."""
REST_FILES = pytest.StashKey[set[Path]]()
"""The files with tests that the last run skipped."""
# Tests run in parallel, and torch threads that wait for each other would only take time from other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # until all tests are collected: a fifth of that time went into looking for garbage in modules
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that divide the tests."""
    parser.addoption("--fast", action="store_true", help="leave out the long proofs (`LONG` in conftest.py)")
    parser.addoption("--rest", action="store_true", help="run the long proofs, and the tests that the last run skipped")
    text = "a test that is skipped is a failure, unless it wants a GPU"
    parser.addoption("--strict-skips", action="store_true", help=text)


def is_long(path: str) -> bool:
    """Return whether a test or file, by its path in the repository, is one of the long proofs."""
    return path.startswith(tuple(prefix for prefixes in LONG.values() for prefix in prefixes))


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin in the first process only; the processes of pytest-xdist report to it."""
    if config.getoption("--rest"):
        assert config.cache is not None, "--rest reads pytest's cache"
        config.stash[SKIPPED] = skipped = set(config.cache.get(KEY, []))
        config.stash[REST_FILES] = {config.rootpath / name.partition("::")[0] for name in skipped}
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
        """Write the skipped tests into the cache, unless this run was `--rest` or was of the last failures only."""
        cache = getattr(self.config, "cache", None)  # `-p no:cacheprovider` removes it, and `lf` too
        rest, failed = self.config.getoption("--rest"), self.config.getoption("lf", False)
        if cache is not None and not (rest or failed):
            cache.set(KEY, sorted(self.found))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of which no test is wanted."""
    if collection_path.suffix != ".py" or not collection_path.is_relative_to(config.rootpath):
        return None
    long = is_long(collection_path.relative_to(config.rootpath).as_posix())
    if config.getoption("--fast"):
        return long or None
    if config.getoption("--rest"):
        return not (long or collection_path in config.stash[REST_FILES]) or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the tests that are wanted."""
    if not config.getoption("--rest"):
        return
    skipped = config.stash[SKIPPED]
    wanted = {
        item: is_long(item.nodeid) or bool({item.nodeid, item.nodeid.partition("::")[0]} & skipped) for item in items
    }
    config.hook.pytest_deselected(items=[item for item in items if not wanted[item]])
    items[:] = [item for item in items if wanted[item]]


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
    """With `--strict-skips`, make a test fail that is skipped."""
    report = yield
    return report if item.get_closest_marker("gpu") else strict(report, item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """With `--strict-skips`, make a module fail that is skipped as a whole."""
    report = yield
    return strict(report, collector.config)


def strict(report: Any, config: pytest.Config) -> Any:
    """Return the report; with `--strict-skips`, a skip becomes a failure."""
    if config.getoption("--strict-skips") and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"It was skipped: {report.longrepr[2]}"
    return report
