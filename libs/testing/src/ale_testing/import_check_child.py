"""This program finds out what only an import of a plugin can show, of several plugins. `ale_testing.import_check`
starts it; it forks a process for each plugin, so that effects of the import stay there, and imports none itself."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ale.config.keys import describe_keys
from ale.errors import AleError
from ale.registry.class_text import first_sentence
from ale.registry.drivers import FoundObserver, find_plugin, load_driver_class
from ale.registry.installed import PluginInfo, list_plugins
from ale.registry.user_classes import import_place
from ale.registry.validation import nearest_hint
from ale.specs.kinds import CAPABILITIES

OUTCOME, STDOUT, STDERR, EXIT_CODE = "outcome.json", "stdout", "stderr", "exit_code"
"""The files in a plugin's folder."""
LATE = "late"
"""Stands in the place of the exit code of a process that was killed, since its time was over."""
AT_ONCE = min(4, os.cpu_count() or 1)
LOOK_S = 0.01


@dataclass(frozen=True)
class ImportFindings:
    """What the import found. `problem` is a sentence, or None; where the import failed the other fields are empty."""

    problem: str | None = None
    location: str = ""
    summary: str = ""
    """The first sentence of its docstring."""
    api_version: str = ""
    capabilities: tuple[str, ...] = ()
    config: tuple[tuple[str, ...], ...] = ()
    """Rows of (key, type, default, meaning)."""
    schema: dict[str, Any] = field(default_factory=dict)
    """JSON Schema of the plugin's `Config`."""


def examine(kind: str, name: str) -> ImportFindings:
    """In the child: load the plugin and look at what the registry demands and what the manifest says."""
    try:
        info = find_plugin(kind, name)
        cls = load_driver_class(kind, name)
    except AleError as error:
        return ImportFindings(str(error).removeprefix(f"{kind}: "))
    capabilities = tuple(sorted(cls.capabilities))
    documented: Any = cls.found if issubclass(cls, FoundObserver) else cls
    module = sys.modules[cls.__module__] if documented is cls else _module_of(info)
    return ImportFindings(
        _describe_disagreement(info, capabilities),
        str(getattr(module, "__file__", "")),
        first_sentence(documented.__doc__ or ""),
        str(cls.api_version),
        capabilities,
        tuple(describe_keys(cls.Config)),
        cls.Config.model_json_schema(),
    )


def _module_of(info: PluginInfo) -> Any:
    """Return the module of an observer that is no driver."""
    return import_place(info.target) if not info.package else sys.modules[info.target.partition(":")[0]]


def _describe_disagreement(info: PluginInfo, capabilities: tuple[str, ...]) -> str | None:
    """A sentence where the class contradicts its manifest, if it has one, or has an unknown capability."""
    if info.capabilities is not None and set(capabilities) != set(info.capabilities):
        return (
            f"Its class can do {', '.join(capabilities) or 'nothing special'}, its ale-plugin.json says "
            f"{', '.join(sorted(info.capabilities)) or 'nothing'}; write the same into both, or take it out of the "
            "file."
        )
    known = CAPABILITIES[info.kind]
    for word in capabilities:
        if word not in known and "." not in word:
            return (
                f"There is no capability '{word}' of kind {info.kind}.{nearest_hint(word, known)} "
                "One of the plugin's own has a dot, such as 'acme.migrate'."
            )
    return None


def examine_all(folder: Path, timeout_s: float, plugins: Sequence[str]) -> None:
    """Examine each plugin (its kind, a space, and its name) in a process of its own, which may take so many seconds and
    has a folder with the plugin's number."""
    list_plugins()  # what is installed is read once for all
    waiting = list(enumerate(plugins))
    running: dict[int, tuple[Path, float]] = {}
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    try:
        while waiting or running:
            if waiting and len(running) < AT_ONCE:
                number, plugin = waiting.pop(0)
                place = folder / str(number)
                place.mkdir()
                running[_fork(place, *plugin.split(" ", 1))] = place, time.monotonic() + timeout_s
                continue
            time.sleep(LOOK_S)
            for pid, (place, until) in list(running.items()):
                late = time.monotonic() > until
                if late:
                    _kill(pid)
                ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
                if ended:
                    _kill(pid)  # also what the import started and left running
                    (place / EXIT_CODE).write_text(LATE if late else str(os.waitstatus_to_exitcode(status)))
                    del running[pid]
    finally:
        for pid in running:
            _kill(pid)


def _fork(place: Path, kind: str, name: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number, file in enumerate((STDOUT, STDERR), 1):
            os.dup2(os.open(place / file, os.O_WRONLY | os.O_CREAT), number)
        os.environ["TMPDIR"] = str(place)  # this process ends without the clean-up that modules register
        tempfile.tempdir = None
        (place / OUTCOME).write_text(json.dumps(asdict(examine(kind, name))))
        sys.stdout.flush()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)  # threads that the plugin left cannot hold it


def _kill(pid: int) -> None:
    """End a process with everything of its session."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    examine_all(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
