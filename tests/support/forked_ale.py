"""`ale` in processes that are forked from one which has imported everything: importing torch and transformers takes
four seconds, a run of the tests' size two. Python's own fork server does it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

IMPORTS = (
    "ale_train.commands.run_command",
    "ale_train.pipeline.run",
    "ale_bash",
    "ale_engine_torch.load_decoder",
    "ale_engine_torch.scheduler",
    "ale_iflow.agent",
    "ale_ipa.policy_loss",
    "ale_ipa.loss",
    "ale_local.provider",
    "ale_report.page",
    "ale_train.rl.stages",
    "ale_train.supervised.stages",
    "ale_tests.reward",
    "ale_train.config.scratch_model",
    "ale_trainer_torch.worker",
)
"""What a run of the tests imports; it computes nothing, so that there are no threads where processes are forked."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(list(IMPORTS))


class ForkedAle:
    """A process that is `ale` with these arguments, or `main` of another module; it leads a session of its own.

    What it prints goes to the files `out` and `err` of `folder`.
    """

    def __init__(self, arguments: Sequence[str | Path], folder: Path, module: str = "ale.cli.main") -> None:
        self._arguments = [*map(str, arguments)]
        self._printed = folder / "out", folder / "err"
        names = [str(path) for path in self._printed]
        self._process = CONTEXT.Process(target=_be, args=(module, self._arguments, names))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code, a signal's number, negative, if that ended it, or None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> subprocess.CompletedProcess[str]:
        """Wait for its end; one that goes on is killed and fails the test."""
        self._process.join(timeout)
        code = self.poll()
        out, err = (path.read_text() if path.exists() else "" for path in self._printed)
        if code is None:
            self.send_signal(signal.SIGKILL)
            raise subprocess.TimeoutExpired(self._arguments, timeout, out, err)
        return subprocess.CompletedProcess(self._arguments, code, out, err)


def _be(module: str, arguments: list[str], printed: list[str]) -> None:
    os.setsid()
    for standard, name in enumerate(printed, 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), standard)
    sys.argv = ["ale", *arguments]
    import_module(module).main()
