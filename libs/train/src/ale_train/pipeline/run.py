"""A run from beginning to end: demonstrations, continual pre-training, supervised warm start, reinforcement learning,
evaluation, summary.

However a run ends (done, failed, interrupted), it leaves a readable run folder whose summary.json says how it ended.
"""

from __future__ import annotations

import asyncio
import json
import resource
import shlex
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ale.config.environment import allowed_observers
from ale.config.references import Resolved, redact_json
from ale.errors import ConfigError, TrainerLost
from ale.registry.hooks import Hooks
from ale.registry.observers import open_observers
from ale.rollout.episode import DEMONSTRATIONS_STAGE
from ale.specs.driver import DriverContext
from ale.store.output_files import check_folder, write_whole
from ale.store.run_store import CONFIG_NAME, DB_NAME, OWN_WORDS, SUMMARY_NAME, RunFolderBusy, RunStore
from ale.trajectory import Trajectory
from ale_train.checkpoints.checkpoint_folders import step_checkpoint
from ale_train.checkpoints.resume import describe_new_rates, newest_checkpoint, run_to_resume
from ale_train.config.run import RunConfig
from ale_train.config.scratch_model import ScratchModel
from ale_train.config.user_files import FILES, RunFiles, changed_files, plan_copies
from ale_train.evaluation.evaluate import AFTER_RL, BEFORE_RL, check_evaluation_tasks, evaluate_policy
from ale_train.evaluation.task_counts import count_tasks
from ale_train.models.export import after_stage
from ale_train.models.named_model import fetch_model
from ale_train.models.other_readers import describe_other_reading
from ale_train.models.policy_checks import check_policy
from ale_train.models.scratch import write_scratch_model
from ale_train.models.template_override import WITH_TEMPLATE, apply_template
from ale_train.pipeline.preflight import RunPlan
from ale_train.pipeline.stages import Only, Stages
from ale_train.rl.fork import FORKED_FROM, Fork, ForkRefused, begin_fork, restore_fork
from ale_train.workbench.channel import RunChannel
from ale_train.workbench.progress import Progress
from ale_train.workbench.workbench import Workbench, open_workbench


@dataclass(frozen=True)
class RunResult:
    """The result of a run."""

    folder: Path
    summary_path: Path
    summary: dict[str, Any]


def new_run_folder(config: RunConfig) -> tuple[str, Path]:
    """Return a new run id and the folder for it (which is not made yet)."""
    run_id = f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    return run_id, config.run_dir / run_id


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run: what is executed, where, and what shows its progress."""

    plan: RunPlan
    files: RunFiles
    """The user's files that the run folder keeps."""
    progress: Progress
    run_id: str
    folder: Path

    @property
    def values(self) -> Resolved:
        """The run file's data, with and without its secrets."""
        return self.plan.loaded.values

    async def execute(self) -> RunResult:
        """Execute the run with its observers; errors lose the secrets in them."""
        config = self.plan.config
        try:
            async with AsyncExitStack() as stack:
                channel = RunChannel(self.values.redact, show=self.progress.note)
                context = DriverContext(self.run_id, self.folder, config.seed, {"run": self.run_id}, channel)
                hooks = await open_observers(config.observers, context, stack, allowed_observers())
                return await self._execute_observed(context, hooks)
        except BaseException as problem:
            _redact(problem, self.values.redact)
            raise

    async def _execute_observed(self, context: DriverContext, hooks: Hooks) -> RunResult:
        config, run_id, folder, redact = self.plan.config, self.run_id, self.folder, self.values.redact
        store = RunStore.create(folder, redact)
        begun = store.meta("run_id") is not None
        store.resumed = begun or self.plan.fork is not None
        earlier = _read_evaluations(folder, config) if begun else {}
        context = replace(context, channel=RunChannel(redact, hooks, store, self.progress.note))
        if not begun:
            await self._begin_fork(store)
        self.files.write_copies(folder)
        store.set_meta({"run_id": run_id, "config": self.files.config})
        write_whole(folder / CONFIG_NAME, self.files.config)  # a run has begun once it is there
        began = time.monotonic()
        status, error, bench = "failed", None, None
        try:
            hooks.call("ale_run_started", run_id=run_id, run_dir=folder, config=self.values.public)
            source = None if self.plan.source is None else str(self.plan.source.resolve())
            about = {"run_id": run_id, "seed": config.seed, "only": self.plan.only, "source": source}
            about |= {} if self.plan.fork is None else {"forked_from": str(self.plan.fork)}
            store.add_event("run_resumed" if begun else "run_started", **about)
            if config.model.path is not None and self.plan.message_engine is None and self.plan.fork is None:
                found = await fetch_model(config.model.path, config.model.revision, context.channel)
                if found != config.model.path:  # a download, which `plan_run` did not see
                    check_policy(config.model, found)
                found = apply_template(config.model, found, folder / "model" / WITH_TEMPLATE)
                config = config.model_copy(update={"model": config.model.model_copy(update={"path": found})})
            async with open_workbench(
                config, self.plan.required, context, hooks, store, self.progress, train=self.plan.only != "rollout"
            ) as bench:
                bench.evaluations.update(earlier)
                await run_stages(bench, self.plan.stages, self.plan.only, self.plan.fork)
            status = "completed"
        except asyncio.CancelledError:
            status, error = "interrupted", "The run was interrupted."
            raise
        except BaseException as problem:
            error = redact(str(problem)) or type(problem).__name__
            raise
        finally:
            facts = {"run_id": run_id, "status": status, "error": error, "seed": config.seed}
            seconds = time.monotonic() - began + float(store.meta("seconds") or 0)  # of earlier parts, too
            summary = facts | summarize(bench, store, seconds, earlier)
            summary = json.loads(redact_json(json.dumps(summary), redact, OWN_WORDS))
            path = write_whole(folder / SUMMARY_NAME, json.dumps(summary, indent=2) + "\n")
            store.set_meta({"seconds": str(seconds)})
            store.add_event("run_finished", status=status, error=error)
            hooks.call("ale_run_finished", run_id=run_id, summary=summary)
            store.close()
        return RunResult(folder, path, summary)

    async def _begin_fork(self, store: RunStore) -> None:
        """Take what a fork begins with from the other run. If that fails, no run has begun."""
        fork = self.plan.fork
        if fork is None:
            return
        try:
            note = await asyncio.to_thread(begin_fork, store, fork, self.plan.config)
        except BaseException:
            store.close()
            (self.folder / DB_NAME).unlink()
            raise
        store.set_meta({FORKED_FROM: json.dumps({"run": str(fork.run), "step": fork.step})})
        self.progress.note(f"The run begins with {fork}, and counts its steps from 1. {note}".rstrip())


async def run(plan: RunPlan, progress: Progress, *, folder: Path | None = None, resume: bool = False) -> RunResult:
    """Execute a run; an error that stopped it is raised after the summary is written. With `resume`, the run in
    `folder` goes on where it was interrupted, or a finished one with more steps; so does one that lost its trainer,
    from each new checkpoint once."""
    run_id, default_folder = new_run_folder(plan.config)
    folder = folder or default_folder
    check_folder(folder, "run folder")
    if not resume and (folder / DB_NAME).exists():
        raise ConfigError(f"{folder} holds a run already; go on with it (--resume), give another --out, or remove it.")
    files = plan_copies(plan.loaded.values, plan.loaded.files, folder)
    for path in changed_files(folder) if resume else ():
        progress.note(f"{path} has changed since the run began; it goes on with its own copy in {folder / FILES}.")
    if resume and (note := describe_new_rates(folder, plan.config.rl)):
        progress.note(note)
    steps = None if plan.config.rl is None else plan.config.rl.steps
    gone_on_from = ""
    while True:
        if resume:
            run_id = run_to_resume(folder, files.config, steps)
        try:
            return await Attempt(plan, files, progress, run_id, folder).execute()
        except TrainerLost as lost:
            newest = newest_checkpoint(folder) if plan.only == "all" else ""
            if newest in ("", gone_on_from):
                raise
            resume, gone_on_from = True, newest
            plan = plan.with_new_stages()
            progress.note(f"{lost} The run goes on from its checkpoint {newest}.")
        except (RunFolderBusy, ForkRefused):  # the run goes on elsewhere, or cannot go on
            raise
        except BaseException:
            if plan.only != "train" and (folder / CONFIG_NAME).exists():
                progress.note(f"To go on with this run: ale run --resume {shlex.quote(str(folder))}")
            raise


def _redact(error: BaseException, redact: Callable[[str], str]) -> None:
    """Remove secrets from the messages of an error, its parts and its causes."""
    left, seen = [error], set()
    while left:
        error = left.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        error.args = tuple(redact(a) if isinstance(a, str) else a for a in error.args)
        left += [e for e in (error.__cause__, error.__context__) if e is not None]
        if isinstance(error, BaseExceptionGroup):
            left += error.exceptions


def _read_evaluations(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Return the evaluations of a run that goes on, from its summary. That after its last step is one of a step now, if
    more follow."""
    try:
        found = dict(json.loads((folder / SUMMARY_NAME).read_text())["heldout"])
    except (OSError, ValueError, KeyError):  # it was killed before it left a summary
        return {}
    last = None if config.rl is None else config.rl.steps
    return {
        f"step_{figures['step']}" if label == AFTER_RL and figures["step"] != last else label: figures
        for label, figures in found.items()
    }


async def run_stages(bench: Workbench, stages: Stages, only: Only, fork: Fork | None = None) -> None:
    """Run the stages in order, or half of the loop; a `fork` begins after the supervised stages."""
    config, loop = bench.config, stages.loop
    if only != "all":
        assert loop is not None
        return await loop.train(bench)
    for stage in stages:
        stage.check_tasks(bench)
    if config.eval is not None:
        await check_evaluation_tasks(bench, config.eval)  # an unknown split is refused before the demonstrations
    await (_begin_with_model(bench, stages) if fork is None else _begin_with_checkpoint(bench, stages, fork))
    if loop:
        await loop.train(bench)
    if config.trains:
        await bench.save("final", _last_checkpoint(bench, stages))


async def _begin_with_checkpoint(bench: Workbench, stages: Stages, fork: Fork) -> None:
    """Load the policy of a fork, with the trainer's state, and evaluate it before its first step."""
    done = await restore_fork(bench, fork)
    await count_tasks(bench)
    demonstrations = list(bench.store.trajectories("stage = ?", (DEMONSTRATIONS_STAGE,)))
    for stage in stages:
        stage.prepare(bench, demonstrations)
    if not done and BEFORE_RL not in bench.evaluations:
        await evaluate_policy(bench, BEFORE_RL, 0)


async def _begin_with_model(bench: Workbench, stages: Stages) -> None:
    """Load the policy, run the supervised stages that are not done, and evaluate what they have made."""
    config = bench.config
    demonstrations = [t for stage in stages for t in await stage.gather(bench)]
    if config.model.scratch is not None:
        await bench.load_policy(await make_scratch_model(bench, config.model.scratch, demonstrations), train=True)
    elif config.model.path is not None and bench.samples_policy:
        await bench.load_policy(config.model.path, train=config.trains)
        if config.trains and (found := await asyncio.to_thread(describe_other_reading, config.model.path)):
            bench.progress.note(found)
    else:
        await bench.engine.load_model(None, bench.sessions.tokenizer)
    await count_tasks(bench)
    for stage in stages:
        stage.prepare(bench, demonstrations)
    for name, stage in stages.before.items():
        if bench.store.resumed and (version := bench.store.meta(f"saved.{name}")):
            await bench.restore(after_stage(bench.folder, name), int(version))
            continue
        await stage.train(bench)
        await bench.save(name)
    label = "after_sft" if config.sft else "after_cpt" if config.cpt else BEFORE_RL if stages.loop else ""
    if label not in bench.evaluations:  # an earlier part of the run may have made it, with other settings
        await evaluate_policy(bench, label, 0)


def _last_checkpoint(bench: Workbench, stages: Stages) -> Path | None:
    """Return the checkpoint that holds the final policy; None if no stage has written one."""
    if bench.config.rl is not None and bench.config.rl.steps:
        return step_checkpoint(bench.folder, bench.config.rl.steps)
    return after_stage(bench.folder, list(stages.before)[-1]) if stages.before else None


async def make_scratch_model(bench: Workbench, scratch: ScratchModel, demonstrations: Sequence[Trajectory]) -> Path:
    """Make a model with random weights and a tokenizer trained on the demonstrations; returns its folder."""
    folder = bench.folder / "model" / "initial"
    with bench.stopwatch("model"):
        tokenizer = bench.sessions.tokenizer
        texts = [tokenizer.decode(s.token_ids) for t in demonstrations for s in t.sequences]
        await asyncio.to_thread(write_scratch_model, scratch, folder, texts, bench.config.seed)
    return folder


def summarize(bench: Workbench | None, store: RunStore, seconds: float, earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of summary.json; `earlier` are the evaluations of the run's earlier parts."""
    stages, sampled = bench.seconds if bench else {}, store.sampled_tokens()
    return {
        "heldout": dict(bench.evaluations if bench else earlier),
        "seconds": {name: round(value, 3) for name, value in stages.items()} | {"total": round(seconds, 3)},
        "rollouts": store.count(),
        "sandboxes": {name: round(value, 4) for name, value in bench.pool_metrics().items()} if bench else {},
        "sampled_tokens": sampled,
        "tokens_per_s": round(sampled / max(1e-9, seconds), 1),
        "peak_memory_mib": round(peak_memory_mib(), 1),
        "final_policy_version": bench.engine.version if bench else 0,
        "failures": store.failures(),
    }


def peak_memory_mib() -> float:
    """Return the largest resident set of this process so far (that of its children is not included)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
