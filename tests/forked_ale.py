"""`ale` in processes that are forked from one which has imported everything: importing torch and transformers takes
four seconds, a run of the tests' size two. Python's own fork server does it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

IMPORTS = (
    "ale.cli.run_command",
    "ale.pipeline.run",
    "ale_bash",
    "ale_engine_torch.load_decoder",
    "ale_engine_torch.scheduler",
    "ale_evaluation.section",
    "ale_iflow.agent",
    "ale_ipa.loss",
    "ale_ipa.objective",
    "ale_local.provider",
    "ale_report.page",
    "ale_rl.section",
    "ale_rl.stages",
    "ale_sandbox_pool.section",
    "ale_supervised.stages",
    "ale_tests.reward",
    "ale_tiny_models.decoder",
    "ale_trainer_torch.worker",
)
"""What a run of the tests imports; it computes nothing, so that there are no threads where processes are forked."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(list(IMPORTS))


class ForkedAle:
    """A process that is `ale` with these arguments, or `main` of another module; used like `subprocess.Popen`.

    It leads a session of its own, and what it prints goes to the file `log`.
    """

    def __init__(self, arguments: Sequence[str | Path], log: Path, module: str = "ale.cli.main") -> None:
        self.log = log
        self._process = CONTEXT.Process(target=_be, args=(module, [*map(str, arguments)], str(log)))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code once it has ended; a signal's number, negative, if that ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """`returncode`, or None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> str:
        """Wait for its end and return what it has printed; one that goes on is killed and fails the test."""
        self._process.join(timeout)
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)
            raise TimeoutError(f"It still ran after {timeout:.0f} s: {self.log.read_text()[-2000:]}")
        return self.log.read_text()


def _be(module: str, arguments: list[str], log: str) -> None:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(output, standard)
    sys.argv = ["ale", *arguments]
    import_module(module).main()
