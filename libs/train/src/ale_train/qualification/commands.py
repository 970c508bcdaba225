"""`ale tasks check` and `ale tasks select`: find the tasks of a run that are fit to learn from."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from ale.cli.messages import configure_messages
from ale.cli.signals import run_until_signal
from ale.config.capabilities import message_engine
from ale.config.environment import allowed_observers
from ale.errors import ConfigError
from ale.registry.observers import open_observers
from ale.specs.driver import DriverContext
from ale.store.output_files import check_file, check_folder, write_output
from ale.store.run_store import CONFIG_NAME, RunStore
from ale_train.config.load import LoadedConfig, load_run_config
from ale_train.display.open_display import open_display
from ale_train.models.named_model import fetch_model
from ale_train.pipeline.preflight import RunPlan, plan_run
from ale_train.pipeline.run import new_run_folder
from ale_train.qualification.instance_report import Instance, InstanceReport, Limits
from ale_train.qualification.qualify import NoEngine, Policy, qualify
from ale_train.workbench.channel import RunChannel
from ale_train.workbench.progress import Progress
from ale_train.workbench.workbench import open_workbench

MOST_ROWS = 40
NO_MODEL = ["sft=null", "rl=null", "trainer=null", "model.scratch=null"]


@dataclass(frozen=True)
class QualificationRequest:
    """How to check and try the tasks; the rollouts are stored in `folder`."""

    split: str
    count: int | None
    repeats: int
    folder: Path | None
    policies: tuple[Policy, ...] = ()
    attempts: int = 0
    limits: Limits = field(default_factory=Limits)


def check(
    file: Path, overrides: list[str], split: str, count: int | None, repeats: int, out: Path | None, as_json: bool
) -> int:
    """Check the tasks without a model; return 1 if one is unfit."""
    loaded = load_run_config(file, [*NO_MODEL, *overrides])
    # No model is sampled in a check, so no engine is loaded.
    loaded = replace(loaded, run=loaded.run.model_copy(update={"engine": None}))
    report = _make_report(loaded, QualificationRequest(split=split, count=count, repeats=repeats, folder=_folder(out)))
    _print_report(report, out, as_json)
    return 0 if len(report.kept_ids) == len(report.instances) else 1


def select(
    file: Path,
    overrides: list[str],
    policies: Sequence[Path],
    attempts: int,
    min_pass: float,
    max_pass: float,
    out: Path,
    split: str,
    count: int | None,
    repeats: int,
    as_json: bool,
) -> int:
    """Check the tasks, try them with each policy, and write which ones to keep."""
    if min_pass > max_pass:
        raise ConfigError(f"--min-pass {min_pass:g} is above --max-pass {max_pass:g}: no task could be kept.")
    loaded = load_run_config(file, [*NO_MODEL, *overrides])
    limits = Limits(min_pass=min_pass, max_pass=max_pass)
    asked = QualificationRequest(
        split=split,
        count=count,
        repeats=repeats,
        folder=_folder(out),
        policies=_policies(loaded, policies),
        attempts=attempts,
        limits=limits,
    )
    _print_report(_make_report(loaded, asked), out, as_json)
    return 0


def _policies(loaded: LoadedConfig, folders: Sequence[Path]) -> tuple[Policy, ...]:
    """The policies of --policy, or else the run file's."""
    config = loaded.run
    messages = message_engine(config)
    if folders and messages:
        raise ConfigError(
            f"--policy names model folders, and the engine '{messages}' answers in their place; leave one out."
        )
    if len(set(folders)) < len(folders):
        raise ConfigError("--policy names a folder twice; name each once.")
    if folders:
        return tuple(map(Policy.of, folders))
    if messages:
        assert config.engine is not None
        return (Policy(str(config.engine.settings.get("model", messages)), "upstream"),)
    if config.model.path is None:
        return (Policy("engine", "engine"),)
    channel = RunChannel(loaded.values.redact, show=lambda text: print(text, file=sys.stderr))
    return (Policy.of(asyncio.run(fetch_model(config.model.path, config.model.revision, channel))),)


def _folder(out: Path | None) -> Path | None:
    """Return the folder of a report's rollouts. Raises `ConfigError` if `out` cannot be the report's file."""
    if out is None:
        return None
    if os.path.isdir(out) or not out.name or out.suffix == ".run":
        raise ConfigError(
            f"--out {out}: give a file for the report, such as kept.json; the rollouts go to kept.run beside it."
        )
    folder = out.with_suffix(".run")
    check_file(out, "report")
    check_folder(folder, "folder of the report's rollouts")
    return folder


def _make_report(loaded: LoadedConfig, asked: QualificationRequest) -> InstanceReport:
    plan = plan_run(loaded, "rollout")
    with open_display() as progress:
        configure_messages(progress.note, loaded.values.redact)
        instances = run_until_signal(lambda: _qualify_tasks(loaded, plan, asked, progress))
    return InstanceReport(
        split=asked.split,
        policies=tuple(policy.name for policy in asked.policies),
        attempts=asked.attempts,
        repeats=asked.repeats,
        limits=asked.limits,
        instances=tuple(instances),
    )


async def _qualify_tasks(
    loaded: LoadedConfig, plan: RunPlan, asked: QualificationRequest, progress: Progress
) -> list[Instance]:
    run_id, folder = new_run_folder(loaded.run)
    folder = asked.folder or folder
    check_folder(folder, "run folder")
    _check_same(loaded, folder)
    async with AsyncExitStack() as stack:
        redact = loaded.values.redact
        context = DriverContext(
            run_id=run_id, run_dir=folder, seed=loaded.run.seed, labels={"run": run_id}, channel=RunChannel(redact)
        )
        hooks = await open_observers(loaded.run.observers, context, stack, allowed_observers())
        store = stack.enter_context(RunStore.create(folder, redact))
        (folder / CONFIG_NAME).write_text(loaded.to_yaml())
        context = replace(context, channel=RunChannel(redact, hooks, store))
        engine = None if loaded.run.engine is not None else NoEngine()
        bench = await stack.enter_async_context(
            open_workbench(loaded.run, plan.required, context, hooks, store, progress, train=False, engine=engine)
        )
        return await qualify(
            bench,
            split=asked.split,
            count=asked.count,
            repeats=asked.repeats,
            policies=asked.policies,
            attempts=asked.attempts,
            limits=asked.limits,
        )


def _check_same(loaded: LoadedConfig, folder: Path) -> None:
    """Refuse to continue rollouts that were made with other settings. Raises `ConfigError`."""
    config = folder / CONFIG_NAME
    if config.is_file() and config.read_text() != loaded.to_yaml():
        raise ConfigError(
            f"{folder} holds rollouts that were made with other settings, which {config} shows; remove the folder, or "
            "give another --out."
        )


def _print_report(report: InstanceReport, out: Path | None, as_json: bool) -> None:
    text = report.model_dump_json(indent=2)
    if out is not None:
        write_output(out, text + "\n", "report")
    if as_json:
        print(text)
        return
    _print_table(report)
    print(f"{len(report.kept_ids)} of {len(report.instances)} tasks are kept.")
    if read := sum(bool(instance.checks.not_scored) for instance in report.instances):
        print(
            f"{read} of them were read but not scored: their reward judges an agent's messages, and no agent ran. "
            "`ale tasks select` judges them by attempts of a policy."
        )
    if out is not None:
        print(out)


def _print_table(report: InstanceReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("TASK", "KEPT", *(["PASS RATE"] if report.policies else []), "NOTE"):
        table.add_column(name, justify="left", overflow="fold")
    # Dropped tasks come first, because a person has to look at them.
    rows = sorted(report.instances, key=lambda instance: instance.kept)
    for i in rows[:MOST_ROWS]:
        rate = [Text("-" if i.pass_rate is None else f"{i.pass_rate:.2f}")] if report.policies else []
        table.add_row(Text(i.id), Text("yes" if i.kept else "no"), *rate, Text(i.reason or i.checks.not_scored))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160).print(table)
    if len(rows) > MOST_ROWS:
        print(f"... and {len(rows) - MOST_ROWS} more; --json prints all.")
