"""This module runs the `ale` command in this process and returns its output and exit code; a separate process would
need a second to import everything."""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from ale.cli import main
from support.fake_packages import packages_at


def ale(*arguments: str | Path, cwd: Path | None = None, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; `path` is a folder of packages that are installed for it besides."""
    out, err = io.StringIO(), io.StringIO()
    command = ["ale", *map(str, arguments)]
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(sys, "argv", command)
        if cwd is not None:
            stack.enter_context(contextlib.chdir(cwd))
        if path is not None:
            stack.enter_context(packages_at(path))
        stack.enter_context(without_added_commands())
        stack.enter_context(messages_as_in_a_new_process())
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        code = exit_code()
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def exit_code() -> int:
    """What the process would end with."""
    try:
        main.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


@contextlib.contextmanager
def without_added_commands() -> Iterator[None]:
    """The commands that packages add are added for one call alone."""
    applications = (main.app, *main.GROUPS.values())
    commands = [(list(app.registered_commands), list(app.registered_groups)) for app in applications]
    groups = dict(main.GROUPS)
    try:
        yield
    finally:
        for app, (own, nested) in zip(applications, commands, strict=True):
            app.registered_commands[:], app.registered_groups[:] = own, nested
        main.GROUPS.clear()
        main.GROUPS.update(groups)


@contextlib.contextmanager
def messages_as_in_a_new_process() -> Iterator[None]:
    """Loggers have no handlers, so that warnings go to stderr; what the command sets up for itself is taken back."""
    root, own = logging.getLogger(), logging.getLogger("ale")
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in (root, own)]
    hook, last, show = sys.excepthook, logging.lastResort, warnings.showwarning
    root.handlers[:] = []
    try:
        yield
    finally:
        sys.excepthook, logging.lastResort, warnings.showwarning = hook, last, show
        for logger, handlers, level, propagate in before:
            logger.handlers[:] = handlers
            logger.setLevel(level)
            logger.propagate = propagate
