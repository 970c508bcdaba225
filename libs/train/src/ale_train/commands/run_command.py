"""`ale run`: execute a run file, show its progress, and clean up however it ends.

Ctrl-C and SIGTERM cancel the run once: sandboxes are stopped, the summary is written, the exit code is 130 or 143. A
second signal ends the process at once; sandboxes die with it, and the next start removes what else they left.
"""

from __future__ import annotations

from pathlib import Path

from ale.cli.messages import configure_messages
from ale.cli.signals import run_until_signal
from ale.errors import ConfigError
from ale.store.run_store import CONFIG_NAME, RunStore
from ale_train.checkpoints.resume import half_to_resume
from ale_train.config.load import load_run_config
from ale_train.display.open_display import open_display
from ale_train.evaluation.describe import describe_run
from ale_train.pipeline.preflight import plan_run
from ale_train.pipeline.run import RunResult
from ale_train.pipeline.run import run as run_pipeline
from ale_train.pipeline.stages import read_half
from ale_train.rl.fork import find_fork, fork_of, load_fork

MOST_REASONS = 5
"""How many reasons are printed, each with an example."""


def run(
    file: Path,
    overrides: list[str],
    only: str,
    source: Path | None,
    fork: str | None,
    out: Path | None,
    resume: bool,
) -> int:
    """Run, and print what a newcomer wants to know; the last line is the path of summary.json."""
    chosen, start = read_half(only), None
    if fork is not None:
        if resume or only != "all" or source is not None:
            raise ConfigError("--fork begins a new run of the whole loop; leave out --resume, --only and --from.")
        start = find_fork(fork)
    if resume:
        if only != "all" or source is not None or out is not None:
            raise ConfigError("--resume goes on in its run folder; leave out --only, --from and --out.")
        half, start = half_to_resume(file), fork_of(file)
        chosen, source = read_half(half.only), half.source
        file, out = file / CONFIG_NAME, file
    loaded = load_run_config(file, overrides) if fork is None or start is None else load_fork(file, overrides, start)
    with open_display() as progress:
        configure_messages(progress.note, loaded.values.redact)
        plan = plan_run(loaded, chosen, source, start)
        result = run_until_signal(lambda: run_pipeline(plan, progress, folder=out, resume=resume))
    print_result(result)
    return 0


def print_result(result: RunResult) -> None:
    """Print what was lost, the evaluations with their intervals, where the model is, and the path of the summary."""
    failures = result.summary["failures"]
    if failures:
        counts = ", ".join(f"{count} {kind}" for kind, count in failures.items())
        print(f"rollouts that could not be used: {counts} (of {result.summary['rollouts']})")
        with RunStore.open(result.folder) as store:
            for lost in store.lost(MOST_REASONS):
                print(f"  {lost.describe()}")
    print(f"seconds: {result.summary['seconds']['total']:.0f} ({result.summary['rollouts']} rollouts)")
    print(f"held-out success: {describe_run(result.folder)}")
    final = result.folder / "model" / "final"
    if final.is_dir():
        print(f"model: {final} (`ale serve {result.folder}` serves it; transformers loads it with from_pretrained)")
    print(result.summary_path)
