"""A run from beginning to end: demonstrations, continual pre-training, supervised warm start, reinforcement learning, evaluation,
summary.

Every way out of a run (done, failed, interrupted) leaves a readable run folder with a summary.json that says which
way it was.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ale.capabilities import check_capabilities
from ale.config import LoadedConfig
from ale.errors import ConfigError
from ale.observers import open_observers
from ale.pipeline.bootstrap import load_model, scratch_model
from ale.pipeline.dynamic import check_groups
from ale.pipeline.evaluate import evaluate
from ale.pipeline.experts import Experts
from ale.pipeline.instances import read_instances, training_tasks
from ale.pipeline.offline import roll_out_only, train_only
from ale.pipeline.pretrain import check_texts, pretrain
from ale.pipeline.progress import Progress
from ale.pipeline.reinforce import reinforce
from ale.pipeline.supervised import chosen, gathered, warm_start
from ale.pipeline.teacher import check_teacher
from ale.pipeline.workbench import Workbench, open_workbench
from ale.references import redact_json
from ale.run_config import RunConfig
from ale.specs.driver import DriverContext
from ale.store import CONFIG_NAME, DB_NAME, OWN_WORDS, RunStore, write_summary

Only = Literal["all", "rollout", "train"]


@dataclass(frozen=True)
class RunResult:
    """What a run came to."""

    folder: Path
    summary_path: Path
    summary: dict[str, Any]


def new_run_folder(config: RunConfig) -> tuple[str, Path]:
    """A fresh run id and the folder for it (not made yet)."""
    run_id = f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    return run_id, config.run_dir / run_id


async def run(
    loaded: LoadedConfig, progress: Progress, *, only: Only = "all", source: Path | None = None,
    folder: Path | None = None,
) -> RunResult:  # fmt: skip
    """Execute a run; raises what stopped it, after the summary is written."""
    config = loaded.run
    check(config, only, source)
    run_id, default_folder = new_run_folder(config)
    folder = folder or default_folder
    if (folder / DB_NAME).exists():
        raise ConfigError(f"{folder} holds a run already; give another --out, or remove it.")
    try:
        check_capabilities(config, train=only != "rollout" and config.trains)
        async with AsyncExitStack() as stack:
            context = DriverContext(
                run_id=run_id, run_dir=folder, seed=config.seed, labels={"run": run_id}, redact=loaded.values.redact
            )
            hooks = await open_observers(config.observers, context, stack)
            return await _observed_run(loaded, progress, replace(context, hooks=hooks), only, source)
    except BaseException as problem:
        _redact(problem, loaded.values.redact)
        raise


async def _observed_run(
    loaded: LoadedConfig, progress: Progress, context: DriverContext, only: Only, source: Path | None
) -> RunResult:
    config, run_id, folder, hooks = loaded.run, context.run_id, context.run_dir, context.hooks
    assert folder is not None
    redact = loaded.values.redact
    store = RunStore.create(folder, redact)
    context = replace(context, event=store.add_event)
    (folder / CONFIG_NAME).write_text(loaded.to_yaml())
    began = time.monotonic()
    status, error, bench = "failed", None, None
    try:
        hooks.call("ale_run_started", run_id=run_id, run_dir=folder, config=loaded.values.public)
        store.add_event("run_started", run_id=run_id, seed=config.seed, only=only)
        async with open_workbench(config, context, store, progress, train=only != "rollout") as bench:
            await stages(bench, only, source)
        status = "completed"
    except asyncio.CancelledError:
        status, error = "interrupted", "The run was interrupted."
        raise
    except BaseException as problem:
        error = redact(str(problem)) or type(problem).__name__
        raise
    finally:
        summary = summarize(config, run_id, status, error, bench, store, time.monotonic() - began)
        summary = json.loads(redact_json(json.dumps(summary), redact, OWN_WORDS))
        path = write_summary(folder, summary)
        store.add_event("run_finished", status=status, error=error)
        hooks.call("ale_run_finished", run_id=run_id, summary=summary)
        store.close()
    return RunResult(folder, path, summary)


def _redact(error: BaseException, redact: Callable[[str], str]) -> None:
    """Take secrets out of what an error, its parts, and what led to it, will say."""
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


def check(config: RunConfig, only: Only, source: Path | None) -> None:
    """Refuse what could not work before anything starts. Raises `ConfigError`."""
    if only == "train" and source is None:
        raise ConfigError("'--only train' trains on a dump of rollouts: name its run folder with '--from RUN'.")
    if only == "all" and source is not None:
        raise ConfigError("'--from RUN' goes with '--only rollout' or '--only train'.")
    if source is not None and not (source / "run.db").is_file():
        raise ConfigError(f"'--from {source}': there is no run folder (it holds no run.db).")
    if config.rl is not None and config.rl.instances is not None and only != "train":
        read_instances(config.rl.instances)
    check_teacher(
        config,
        trains=only == "train" or (only == "all" and config.trains),
        takes_policy=source is not None,
    )
    if only == "train":
        return
    experts = config.rl.experts if config.rl else None
    if experts is not None and (config.sft is None or only == "rollout") and not (experts.demonstrate or experts.data):
        why = (
            "'--only rollout' makes no demonstrations"
            if only == "rollout"
            else "the run has no demonstrations (no 'sft' section)"
        )
        raise ConfigError(f"rl.experts: {why} to take experts from; give rl.experts.demonstrate or rl.experts.data.")
    if only == "rollout":
        if config.model.scratch is not None and source is None and config.endpoint.upstream is None:
            raise ConfigError(
                "model.scratch: a policy from nothing is there after training alone; for '--only rollout' name one with "
                "model.path=FOLDER or '--from RUN', or take the section out (~model.scratch) where the engine needs no model."
            )
        return
    if config.model.scratch is not None and config.sft is None:
        raise ConfigError(
            "model.scratch: the tokenizer is trained on demonstrations, so the run needs an 'sft' section"
            f"{'; for cpt without it give model.path' if config.cpt else ''}."
        )
    if config.trains and config.trainer is None:
        raise ConfigError("trainer: 'cpt', 'sft' and 'rl' need a trainer; name one, or use '--only rollout'.")
    if config.trains and config.model.scratch is None and config.model.path is None:
        raise ConfigError(
            "model: 'cpt', 'sft' and 'rl' need a policy to train; give model.path or model.scratch, or use '--only rollout'."
        )
    if config.cpt:
        check_texts(config.cpt, config.model)


async def stages(bench: Workbench, only: Only, source: Path | None) -> None:
    """The stages in order."""
    config = bench.config
    if only == "rollout":
        return await roll_out_only(bench, source)
    if only == "train":
        assert source is not None
        return await train_only(bench, source)
    if config.rl:
        check_groups(bench.algorithm, config.rl.resample_even_groups)
        # Now, so that a task which is not there is told before the stages that come first.
        tasks = training_tasks(bench, config.rl.instances)
    of_stages = await gathered(bench, config.sft) if config.sft else []
    demonstrations = [*{id(t): t for stage in of_stages for t in stage}.values()]
    if config.model.scratch is not None:
        await load_model(bench, await scratch_model(bench, demonstrations), train=True)
    elif config.model.path is not None and bench.endpoint.upstream is None:
        await load_model(bench, config.model.path, train=config.trains)
    else:
        await bench.engine.load_model(None, bench.endpoint.tokenizer)
    data = chosen(bench, config.sft, of_stages) if config.sft else []
    if config.cpt:
        await pretrain(bench, config.cpt)
        await bench.backend.save(bench.folder / "model" / "cpt")
    if config.sft:
        await evaluate(bench, "before_sft", -1)
        await warm_start(bench, config.sft, data)
        await bench.backend.save(bench.folder / "model" / "sft")
    await evaluate(bench, "after_sft" if config.sft else "after_cpt" if config.cpt else "before_rl", 0)
    if config.rl:
        known = Experts(bench, config.rl.experts, demonstrations) if config.rl.experts else None
        await reinforce(bench, config.rl, tasks, known)
        await evaluate(bench, "after_rl", config.rl.steps)
    if config.trains:
        await bench.backend.save(bench.folder / "model" / "final")


def summarize(
    config: RunConfig, run_id: str, status: str, error: str | None, bench: Workbench | None, store: RunStore,
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """What stands in summary.json."""
    stages = dict(bench.seconds) if bench else {}
    sampled = store.sampled_tokens()
    generating = sum(stages.get(s, 0.0) for s in ("evaluation", "rollout"))
    return {
        "run_id": run_id,
        "status": status,
        "error": error,
        "seed": config.seed,
        "heldout": dict(bench.evaluations) if bench else {},
        "seconds": {name: round(value, 3) for name, value in stages.items()} | {"total": round(seconds, 3)},
        "rollouts": store.count(),
        "sandboxes": {name: round(value, 4) for name, value in bench.pool_metrics().items()} if bench else {},
        "sampled_tokens": sampled,
        "tokens_per_s": round(sampled / generating, 1) if generating else 0.0,
        "peak_memory_mib": round(peak_memory_mib(), 1),
        "final_policy_version": bench.engine.version if bench else 0,
        "failures": store.failures(),
    }


def peak_memory_mib() -> float:
    """Largest resident set of this process so far (its children's come on top)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
