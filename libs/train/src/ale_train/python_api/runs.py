"""`ale_train.run` and `ale_train.evaluate`: what the commands `ale run` and `ale eval` do, as functions.

A notebook has a running event loop, in which nothing else can run to its end. There, `run` works in a thread and waits
for it; `run_async` runs in the loop itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ale.cli.messages import CountedWarnings
from ale.config.yaml_text import dump_yaml, parse_yaml
from ale.errors import ConfigError
from ale.store.run_store import CONFIG_NAME
from ale.task import HELDOUT
from ale_train.checkpoints.resume import half_to_resume
from ale_train.commands.evaluate_command import load_evaluation
from ale_train.config.load import LoadedConfig, load_run_config
from ale_train.config.user_files import UserFile, resolve_files
from ale_train.display.open_display import open_display
from ale_train.pipeline.preflight import RunPlan, plan_run
from ale_train.pipeline.run import run as run_pipeline
from ale_train.pipeline.stages import Only, read_half
from ale_train.python_api.in_memory import RunData, refuse_other_processes
from ale_train.python_api.results import Result
from ale_train.rl.fork import Fork, find_fork, fork_of, load_fork

Config = Path | str | Mapping[str, Any]
"""The path of a run file, YAML text (a string with a line break), or the same as a mapping, in which functions and rows
may stand too."""
Tasks = Sequence[Mapping[str, Any]] | Mapping[str, Any] | Any
"""Rows: a list of mappings, a `Dataset`, a data frame, or a mapping of these by split; or the section `tasks`."""
Rewards = Callable[..., Any] | Sequence[Callable[..., Any]] | Mapping[str, Any] | str | None
"""A function, several whose sum is the reward, or the section `reward`."""


def run(
    config: Config,
    *overrides: str,
    tasks: Tasks = None,
    reward: Rewards = None,
    only: Only = "all",
    source: Path | str | None = None,
    fork: Path | str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Result:
    """Make a run and return its result, as `ale run` does; `overrides` are settings such as `rl.steps=3`.

    `tasks` are rows in place of the section `tasks`, `reward` is a function in place of the section `reward`
    (`docs/python.md`). `only`, `source` and `fork` are the options `--only`, `--from` and `--fork`; `out` is the run
    folder to write, by default a new one. With `resume`, `config` is the folder of a run that goes on: one that was
    interrupted, or a finished one with more steps (`rl.steps=60`). Without `quiet`, progress is shown on stderr. Raises
    `AleError`, such as a `ConfigError` with the sentences that the command line shows."""
    return _run_to_its_end(
        partial(
            run_async, config, *overrides,
            tasks=tasks, reward=reward, only=only, source=source, fork=fork, out=out, resume=resume,
            quiet=quiet,
        )
    )  # fmt: skip


async def run_async(
    config: Config,
    *overrides: str,
    tasks: Tasks = None,
    reward: Rewards = None,
    only: Only = "all",
    source: Path | str | None = None,
    fork: Path | str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Result:
    """Do what `run` does in the running event loop; cancelling it ends the run and cleans up."""
    read_half(only)
    start = None
    if fork is not None:
        if resume or only != "all" or source is not None:
            raise ConfigError("fork begins a new run of the whole loop; leave out resume, only and source.")
        start = find_fork(str(fork))
    if resume:
        if not isinstance(config, Path | str) or only != "all" or source is not None or out is not None:
            raise ConfigError("resume goes on in the run folder that config names; leave out only, source and out.")
        half, start = half_to_resume(Path(config)), fork_of(Path(config))
        only, source = read_half(half.only), half.source
        config, out = Path(config) / CONFIG_NAME, config
    with _take(config, overrides, tasks, reward) as given:
        if fork is None or start is None:
            loaded = load_run_config(given.file, given.overrides)
        else:
            loaded = load_fork(given.file, given.overrides, start)
        plan = given.plan(loaded, only, None if source is None else Path(source), start)
        return await _run(plan, out, quiet, resume=resume)


def evaluate(
    target: Config | Result,
    *overrides: str,
    tasks: Tasks = None,
    reward: Rewards = None,
    model: Path | str | None = None,
    episodes: int | None = None,
    n: int | None = None,
    sets: Sequence[str] = (),
    out: Path | str | None = None,
    quiet: bool = False,
) -> Result:
    """Judge a policy on held-out tasks and return the result, as `ale eval` does.

    `target` is a run (its folder, or a `Result`), whose most trained policy is judged, or a run file as for `run`;
    `model` is another model folder. `tasks` and `reward` are those of `run`; all rows are held out. `episodes`, `n` and
    `sets` are the options of the same names. The figures are in `Result.evaluations`. Raises `AleError`."""
    return _run_to_its_end(
        partial(
            evaluate_async, target, *overrides,
            tasks=tasks, reward=reward, model=model, episodes=episodes, n=n, sets=sets, out=out, quiet=quiet,
        )
    )  # fmt: skip


async def evaluate_async(
    target: Config | Result,
    *overrides: str,
    tasks: Tasks = None,
    reward: Rewards = None,
    model: Path | str | None = None,
    episodes: int | None = None,
    n: int | None = None,
    sets: Sequence[str] = (),
    out: Path | str | None = None,
    quiet: bool = False,
) -> Result:
    """Do what `evaluate` does in the running event loop."""
    folder = None if model is None else Path(model)
    config = target.folder if isinstance(target, Result) else target
    with _take(config, overrides, tasks, reward, HELDOUT) as given:
        loaded = load_evaluation(given.file, folder, given.overrides, episodes=episodes, n=n, sets=sets)
        return await _run(given.plan(loaded), out, quiet)


async def _run(plan: RunPlan, out: Path | str | None, quiet: bool, *, resume: bool = False) -> Result:
    folder = None if out is None else Path(out)
    with (
        nullcontext(Silence()) if quiet else open_display() as progress,
        _show_warnings(progress.note, plan.loaded.values.redact),
    ):
        made = await run_pipeline(plan, progress, folder=folder, resume=resume)
    return Result(made.folder, made.summary)


class Silence:
    """Shows no progress, only warnings."""

    def stage(self, name: str, total: int) -> None:
        """Show nothing."""

    def advance(self, n: int = 1) -> None:
        """Show nothing."""

    def numbers(self, **values: float) -> None:
        """Show nothing."""

    def note(self, sentence: str) -> None:
        """Show a warning; other notes are not for people who want quiet."""
        if sentence.startswith("warning: "):
            print(sentence, file=sys.stderr)


@contextmanager
def _show_warnings(show: Callable[[str], None], redact: Callable[[str], str]) -> Iterator[None]:
    """Show warnings of ALE and its plugins as notes, without secrets and equal ones counted, while the run works."""
    logger = logging.getLogger("ale")
    handler, propagate = CountedWarnings(show, redact), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


@dataclass(frozen=True)
class _Given:
    """What Python code passed, as the command line knows it."""

    file: Path
    overrides: tuple[str, ...]
    rows: Sequence[Path]
    """The files of rows."""

    def plan(
        self, loaded: LoadedConfig, only: Only = "all", source: Path | None = None, fork: Fork | None = None
    ) -> RunPlan:
        """Plan a run that keeps a copy of the rows. Raises `ConfigError`."""
        if loaded.run.cluster is not None:
            refuse_other_processes(loaded.values.file, loaded.run.cluster.use)
        rows = (UserFile(path.resolve(), path.read_bytes(), is_rows=True) for path in self.rows)
        return plan_run(replace(loaded, files=(*loaded.files, *rows)), only, source, fork)


@contextmanager
def _take(
    config: Config, overrides: Sequence[Any], tasks: Any, reward: Any, split: str | None = None
) -> Iterator[_Given]:
    """Yield what was passed as a file and overrides. Its `include`, and files in which plugins are, are relative to the
    current folder. Rows are in files that are gone afterwards."""
    for override in overrides:
        if not isinstance(override, str):
            raise ConfigError(
                f"An override is a text such as 'rl.steps=3', not {override!r:.60}; keys and values go into the first "
                "argument."
            )
    with tempfile.TemporaryDirectory(prefix="ale-run-file-") as name:
        folder = Path(name).resolve()
        data = RunData(folder)
        try:
            sections = {} if tasks is None else {"tasks": data.of_tasks(tasks, split)}
            sections |= {} if reward is None else {"reward": data.of_reward(reward)}
            texts = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in sections.items())
            yield _Given(_write_run_file(config, data), (*texts, *overrides), data.files)
        except ConfigError as error:
            raise ConfigError(str(error).replace(f"{folder}/", "")) from error.__cause__


def _write_run_file(config: Config, data: RunData) -> Path:
    """Return the path of a run file with this configuration."""
    if isinstance(config, Path) or (isinstance(config, str) and "\n" not in config):
        return Path(config)
    found = parse_yaml(config, "The run file's text") if isinstance(config, str) else config
    if not isinstance(found, Mapping):
        raise ConfigError(
            "A run file holds keys and values, such as 'tasks: bash'; give its path, its text or a mapping."
        )
    included = found.get("include") or []
    included = [included] if isinstance(included, str | Path) else included
    plain = {**data.of_config(found), "include": [str(Path(name).absolute()) for name in included]}
    resolve_files(plain, Path.cwd())
    path = data.folder / "run.yaml"
    path.write_text(dump_yaml(plain))
    return path


def _run_to_its_end(make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run to the end from code that is not async, also inside a running event loop. A Ctrl-C cancels the run, which
    cleans up before this raises."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def work() -> Result:
        started.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await make()

    with ThreadPoolExecutor(1, "ale-run") as thread:
        made = thread.submit(asyncio.run, work())
        try:
            return made.result()
        except KeyboardInterrupt:
            loop, task = started.result()
            if task is not None and not made.done():
                loop.call_soon_threadsafe(task.cancel)
            raise  # the thread is waited for: the run has stopped its sandboxes and written its summary
