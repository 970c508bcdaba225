"""The kit's pytest plugin adds the options, selects the suites, and gives the plugin under test as fixture `subject`.

1. Each test of a suite runs once for every plugin of its kind that `--ale-plugin` names; its name says for which.
2. It imports nothing of ALE unless `--ale-plugin` is given, so that other test runs do not get slower.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ale_testing.plugin_under_test import Subject
    from ale_testing.shared_engine import SharedEngine

HERE = Path(__file__).parent
SUBJECTS, LEFT_OUT = "ale_subjects", "ale_left_out"
SUITE = "ale_testing.test_"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the kit."""
    group = parser.getgroup("ale", "ALE's conformance kit")
    group.addoption(
        "--ale-plugin",
        metavar="KIND:NAME",
        action="append",
        default=[],
        help="a plugin to test, such as sandbox:docker; several where it is given several times",
    )
    group.addoption(
        "--ale-config",
        metavar="FILE",
        help="YAML file with the plugin's own settings; of several plugins, each one's under its KIND:NAME",
    )
    group.addoption(
        "--ale-tasks",
        metavar="TASKS",
        help="the tasks with which scaffolds and rewards are tested, instead of the kit's: the name of a task source, "
        "a section such as '{use: bash, seed: 3}', or a run file",
    )
    group.addoption("--ale-timeout", metavar="SECONDS", type=float, default=120.0, help="for each test (default: 120)")


def pytest_configure(config: pytest.Config) -> None:
    """Find the plugins under test; a mistake is a sentence and exit code 4."""
    config.addinivalue_line(
        "markers", "ale_needs(capability): only for plugins that claim the capability, or have the protocol"
    )
    config.addinivalue_line("markers", "ale_transport(name): only for plugins that hand weights over by this transport")
    config.addinivalue_line("markers", "ale_agent: runs a scaffold's agent, which has to be on this machine")
    config.addinivalue_line("markers", "ale_in_process: only for scaffolds that carry the agent's calls out themselves")
    config.addinivalue_line("markers", "ale_sandbox: only for scaffolds and rewards that use a sandbox")
    names = [name for name in config.getoption("--ale-plugin") if name]
    file, tasks = config.getoption("--ale-config"), config.getoption("--ale-tasks")
    if not names:
        if file or tasks or any(str(argument).startswith("ale_testing") for argument in config.args):
            raise pytest.UsageError("Which plugin is to be tested? Add --ale-plugin KIND:NAME, such as sandbox:docker.")
        return
    from ale.errors import AleError
    from ale_testing import async_tests
    from ale_testing.plugin_under_test import find_subjects

    async_tests.DEADLINE_S = config.getoption("--ale-timeout")
    try:
        setattr(config, SUBJECTS, find_subjects(names, file, tasks))
    except AleError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of the kit's suites, only those of the kinds under test."""
    if collection_path.parent != HERE or not collection_path.name.startswith("test_"):
        return None
    kinds = {subject.kind for subject in _subjects(config)}
    return not any(_is_suite_of(collection_path.stem, kind) for kind in (*kinds, *(["driver"] if kinds else [])))


def _subjects(config: pytest.Config) -> list[Subject]:
    found: list[Subject] = getattr(config, SUBJECTS, [])
    return found


def _is_suite_of(module: str, kind: str) -> bool:
    """Whether a module such as `test_sandbox_trees` is a suite of the kind."""
    return f"{module}_".startswith(f"test_{kind}_")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of a suite is for every plugin of its kind; a package's own test with `subject`, for every plugin."""
    if "subject" not in metafunc.fixturenames:
        return
    module = metafunc.function.__module__  # where it was written, and not where it was imported to
    suite = module.rpartition(".")[2] if module.startswith(SUITE) else None
    fitting = [
        subject
        for subject in _subjects(metafunc.config)
        if suite is None or _is_suite_of(suite, subject.kind) or _is_suite_of(suite, "driver")
    ]
    ids = [subject.id for subject in fitting] or ["no-plugin"]
    metafunc.parametrize("subject", fitting or [None], ids=ids, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of what the plugin does not claim to do."""
    reasons = {item: found for item in items if (found := _reasons_to_skip(item))}
    if reasons:
        words = sorted({word for found in reasons.values() for word in found})
        setattr(
            config,
            LEFT_OUT,
            f"not tested, since the plugin does not claim it: {', '.join(words)} ({len(reasons)} tests)",
        )
        config.hook.pytest_deselected(items=list(reasons))
        items[:] = [item for item in items if item not in reasons]


def _reasons_to_skip(item: pytest.Item) -> list[str]:
    """What a test wants and its plugin does not claim, each in a word or two."""
    called = getattr(item, "callspec", None)
    subject: Subject | None = called.params.get("subject") if called is not None else None
    if subject is None:
        return []
    lacking = [m.args[0] for m in item.iter_markers("ale_needs") if not subject.can(m.args[0])]
    lacking += [m.args[0] for m in item.iter_markers("ale_transport") if m.args[0] not in subject.transports]
    if lacking:
        return [word if isinstance(word, str) else word.__name__ for word in lacking]
    if subject.needs_installation and item.get_closest_marker("ale_agent"):
        return ["runs of its agent, which is installed into images"]
    if subject.over_http and item.get_closest_marker("ale_in_process"):
        return ["what an agent in a process of its own keeps to itself"]
    if not subject.uses_sandbox and item.get_closest_marker("ale_sandbox"):
        return ["what is done in a sandbox"]
    return []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print which capabilities were not tested, because the plugin does not claim them."""
    if hasattr(config, LEFT_OUT):
        terminalreporter.write_line(getattr(config, LEFT_OUT))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Where a thread of the plugin's never ends, Python would wait for it and the tests would not end either."""
    if not _subjects(config):
        return
    from ale_testing import async_tests

    if async_tests.stuck:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(pytest.ExitCode.TESTS_FAILED))


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """The plugin under test."""
    found: Subject | None = request.param
    if found is None:
        pytest.fail("Which plugin is to be tested? Add --ale-plugin KIND:NAME to pytest's options.", pytrace=False)
    found.folder = tmp_path_factory.mktemp("ale")
    # Temporary folders of its own: what the plugin leaves there is its, not some other program's.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr(tempfile, "tempdir", None)
        yield found


@pytest.fixture(scope="session")
def shared_engine(subject: Subject) -> Iterator[SharedEngine]:
    """The plugin's engine, which the tests of its suites share."""
    from ale_testing.shared_engine import SharedEngine

    shared = SharedEngine(subject)
    yield shared
    shared.end()
