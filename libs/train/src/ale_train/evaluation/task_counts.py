"""Counts the tasks of a run before its first episode, and finds those that have no room in the context."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ale.errors import ConfigError
from ale.specs.engine import MessageEngine
from ale.specs.tasks import TaskSource
from ale.store.run_store import RunStore
from ale.task import TRAIN
from ale_train.config.run import RunConfig
from ale_train.workbench.prompt_lengths import (
    PromptLengths,
    SplitSurvey,
    describe_surveys,
    measure_prompts,
    refuse_overlong,
    survey_split,
)
from ale_train.workbench.task_objections import TaskObjections
from ale_train.workbench.workbench import Workbench, read_tasks

LEAST_EXAMINED = 200
COUNTING_S = 0.5
"""For how long a run counts the tasks of a split whose source cannot say how many there are."""
EVENT = "tasks_counted"


def splits_of(config: RunConfig, *, rollouts: bool) -> dict[str, int]:
    """Return the splits of the run's own task source, and how many tasks of each the run takes at most; `rollouts`
    says that it rolls out without the section `rl`."""
    splits: dict[str, int] = {}
    if config.rl is not None or rollouts:
        steps, per_step = (1, 8) if config.rl is None else (config.rl.steps, config.rl.prompts_per_step)
        splits[TRAIN] = max(1, steps * per_step)
    elif config.sft is not None and config.sft.runs_demonstrations:
        splits[TRAIN] = config.sft.demonstrations.count
    if config.eval is not None and not rollouts:
        for chosen in config.eval.chosen_sets().values():
            if chosen.tasks is None:
                splits[chosen.split] = max(splits.get(chosen.split, 0), chosen.episodes)
    return splits


def survey_tasks(
    config: RunConfig,
    source: TaskSource,
    splits: Mapping[str, int],
    lengths: PromptLengths | None,
    counting_s: float,
    *,
    path: str = "tasks",
    use: str = "",
) -> list[SplitSurvey]:
    """Look at the tasks of the splits of a source. Raises `ConfigError` for a split without tasks, for one whose tasks
    have no room in the context, and for a reward that reads what no task has."""
    surveys = []
    for split, most in splits.items():
        objections = TaskObjections(config)
        tasks = read_tasks(source, split, f"{path}: the task source '{use}'")
        survey = survey_split(
            source,
            split,
            tasks,
            lengths,
            max(most, LEAST_EXAMINED),
            look=objections.look_at,
            counting_s=counting_s,
        )
        if not survey.count:
            raise ConfigError(
                f"The task source '{use}' has no tasks in its split '{split}': give it some with its settings in the "
                f"section {path} (`ale config describe tasks NAME` lists them)."
            )
        objections.refuse()
        if lengths is not None:
            refuse_overlong(survey, lengths)
        surveys.append(survey)
    return surveys


async def count_tasks(bench: Workbench, *, rollouts: bool = False) -> None:
    """Say how many tasks the splits of a run have, and what is done with those without room; from now on tasks pass
    through `bench.prompts`. Raises `ConfigError` if a split cannot be used."""
    config, sessions = bench.config, bench.sessions
    lengths: PromptLengths | None = None
    if not isinstance(bench.engine, MessageEngine):  # its prompts are another model's
        lengths = measure_prompts(config, sessions.tokenizer, sessions.form, bench.engine.max_context)
    splits = splits_of(config, rollouts=rollouts)
    surveys = await asyncio.to_thread(
        survey_tasks, config, bench.tasks, splits, lengths, COUNTING_S, use=config.tasks.use
    )
    if lengths is not None:
        for survey in surveys:
            _note(bench.store, survey, lengths)
    for line in describe_surveys(surveys, lengths):
        bench.progress.note(line)
    bench.prompts = lengths


def _note(store: RunStore, survey: SplitSurvey, lengths: PromptLengths) -> None:
    store.add_event(
        EVENT,
        split=survey.split,
        tasks=survey.count,
        all=survey.complete,
        overlong=lengths.overlong,
        max_context=lengths.most,
        without_room=dict(survey.overlong),
    )
