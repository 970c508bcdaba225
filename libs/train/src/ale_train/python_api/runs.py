"""`ale_train.run` and `ale_train.evaluate`: what the commands `ale run` and `ale eval` do, as functions.

A notebook has a running event loop, in which nothing else can run to its end. There, `run` works in a thread and waits
for it; `run_async` runs in the loop itself.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from ale.config.yaml_text import dump_yaml, parse_yaml
from ale.errors import ConfigError
from ale.store.run_store import CONFIG_NAME
from ale_train.commands.evaluate_command import load_evaluation
from ale_train.config.load import load_run_config
from ale_train.config.user_files import resolve_files
from ale_train.display.open_display import open_display
from ale_train.pipeline.preflight import RunPlan, plan_run
from ale_train.pipeline.run import run as run_pipeline
from ale_train.pipeline.stages import Only, read_half
from ale_train.python_api.results import Result

Config = Path | str | Mapping[str, Any]
"""The path of a run file, YAML text (a string with a line break), or the same as a mapping."""


def run(
    config: Config,
    *overrides: str,
    only: Only = "all",
    source: Path | str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Result:
    """Make a run and return its result, as `ale run` does; `overrides` are settings such as `rl.steps=3`.

    `only` and `source` are the options `--only` and `--from`; `out` is the run folder to write, by default a new one.
    With `resume`, `config` is the folder of an interrupted run, which goes on. Without `quiet`, progress is shown on
    stderr. Raises `AleError`, such as a `ConfigError` with the sentences that the command line shows."""
    return _run_to_its_end(
        partial(run_async, config, *overrides, only=only, source=source, out=out, resume=resume, quiet=quiet)
    )


async def run_async(
    config: Config,
    *overrides: str,
    only: Only = "all",
    source: Path | str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Result:
    """Do what `run` does in the running event loop; cancelling it ends the run and cleans up."""
    read_half(only)
    if resume:
        if not isinstance(config, Path | str) or only != "all" or source is not None or out is not None:
            raise ConfigError("resume goes on in the run folder that config names; leave out only, source and out.")
        config, out = Path(config) / CONFIG_NAME, config
    with _as_file(config) as file:
        loaded = load_run_config(file, _check_overrides(overrides))
    plan = plan_run(loaded, only, None if source is None else Path(source))
    return await _run(plan, out, quiet, resume=resume)


def evaluate(
    target: Config | Result,
    *overrides: str,
    model: Path | str | None = None,
    episodes: int | None = None,
    n: int | None = None,
    sets: Sequence[str] = (),
    out: Path | str | None = None,
    quiet: bool = False,
) -> Result:
    """Judge a policy on held-out tasks and return the result, as `ale eval` does.

    `target` is a run (its folder, or a `Result`), whose most trained policy is judged, or a run file as for `run`;
    `model` is another model folder. `episodes`, `n` and `sets` are the options of the same names. The figures are in
    `Result.evaluations`. Raises `AleError`."""
    settings = {"model": model, "episodes": episodes, "n": n, "sets": sets, "out": out, "quiet": quiet}
    return _run_to_its_end(partial(evaluate_async, target, *overrides, **settings))  # type: ignore[arg-type]


async def evaluate_async(
    target: Config | Result,
    *overrides: str,
    model: Path | str | None = None,
    episodes: int | None = None,
    n: int | None = None,
    sets: Sequence[str] = (),
    out: Path | str | None = None,
    quiet: bool = False,
) -> Result:
    """Do what `evaluate` does in the running event loop."""
    folder = None if model is None else Path(model)
    with _as_file(target.folder if isinstance(target, Result) else target) as file:
        loaded = load_evaluation(file, folder, _check_overrides(overrides), episodes=episodes, n=n, sets=sets)
    return await _run(plan_run(loaded), out, quiet)


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
    """Show warnings of ALE and its plugins as notes, without secrets, while the run works."""

    class ToDisplay(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(redact(f"{record.levelname.lower()}: {record.getMessage()}"))

    logger = logging.getLogger("ale")
    handler, propagate = ToDisplay(logging.WARNING), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


@contextmanager
def _as_file(config: Config) -> Iterator[Path]:
    """Yield the path of a run file with this configuration. Its `include`, and files in which plugins
    are, are relative to the current folder."""
    if isinstance(config, Path) or (isinstance(config, str) and "\n" not in config):
        yield Path(config)
        return
    data = parse_yaml(config, "The run file's text") if isinstance(config, str) else config
    if not isinstance(data, Mapping):
        raise ConfigError(
            "A run file holds keys and values, such as 'tasks: bash'; give its path, its text or a mapping."
        )
    included = data.get("include") or []
    included = [included] if isinstance(included, str) else included
    plain = {**_as_plain(data), "include": [str(Path(name).absolute()) for name in included]}
    resolve_files(plain, Path.cwd())
    with tempfile.TemporaryDirectory(prefix="ale-run-file-") as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(dump_yaml(plain))
        yield path


def _check_overrides(overrides: Sequence[Any]) -> Sequence[str]:
    """Raises `ConfigError` for an override that is no text."""
    for override in overrides:
        if not isinstance(override, str):
            raise ConfigError(
                f"An override is a text such as 'rl.steps=3', not {override!r:.60}; keys and values go into the first "
                "argument."
            )
    return overrides


def _as_plain(value: Any, path: str = "") -> Any:
    """Return a value with what YAML does not know (paths, tuples, numbers of numpy) as what it does. Raises
    `ConfigError` for anything else, such as a function."""
    if isinstance(value, Mapping):
        return {str(key): _as_plain(item, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_plain(item, f"{path}.{i}") for i, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if callable(getattr(value, "item", None)):  # a number of numpy or torch
        value = value.item()
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    how = "; name it in its file: {use: python, path: FILE.py, function: NAME}" if callable(value) else ""
    raise ConfigError(f"{path}: a run file cannot hold {value!r:.60}{how}.")


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
