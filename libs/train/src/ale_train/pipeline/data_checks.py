"""What `ale config validate` finds out about a run's data without a run: the tasks of its splits and the rows of its
demonstrations, counted, and measured in the policy's tokens if it has a model folder here."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from ale.registry.drivers import build_driver, load_plugin
from ale.rollout.open_episodes import start_driver
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import ChatTokenizer
from ale.specs.choice import Mix, PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.tasks import TaskSource
from ale.specs.tool_format import ToolFormat
from ale_train.config.run import ModelConfig, RunConfig
from ale_train.config.supervised import SFTConfig
from ale_train.evaluation.task_counts import splits_of, survey_tasks
from ale_train.models.named_model import check_model
from ale_train.models.policy_checks import check_policy, model_context
from ale_train.pipeline.preflight import RunPlan
from ale_train.supervised.demonstrations import read_demonstrations
from ale_train.supervised.long_rows import describe_overlong, find_overlong, longest_sequence
from ale_train.workbench.prompt_lengths import PromptLengths, describe_surveys, measure_prompts
from ale_train.workbench.workbench import open_task_source

COUNTING_S = 5.0
MOST_ROWS = 1000
"""At most so many rows of demonstrations are read."""


async def check_data(plan: RunPlan) -> list[str]:
    """Return lines about the tasks and the demonstrations of a run. Raises `AleError` if some cannot be used."""
    config = plan.config
    folder: Path | None
    if plan.fork is not None:  # its checkpoint holds the model, with the template that the file asks for
        folder, model = plan.fork.checkpoint, ModelConfig()
    else:
        folder = None if config.model.path is None else check_model(config.model.path, config.model.revision)
        model = config.model
    tokenizer = None if folder is None or plan.message_engine else check_policy(model, folder)
    context = DriverContext(seed=config.seed)
    lines: list[str] = []
    lengths: PromptLengths | None = None
    if tokenizer is not None and folder is not None:
        form = _make_form(config, context)
        if config.sft is not None and plan.only == "all" and plan.fork is None:
            lines += _check_demonstrations(config, config.sft, tokenizer, form)
        most = model_context(folder) or config.rollout.max_context
        lengths = measure_prompts(config, tokenizer, form, most)
    if plan.only == "train":
        return lines
    splits = splits_of(config, rollouts=plan.only == "rollout")
    async with AsyncExitStack() as stack:
        if splits and not _is_here(config.tasks):
            lines.append("tasks: not counted, since they are read from the network")
        elif splits:
            source = await open_task_source(stack, config.tasks, plan.required, context)
            surveys = survey_tasks(config, source, splits, lengths, COUNTING_S, use=config.tasks.use)
            lines += describe_surveys(surveys, lengths)
        sets = {} if config.eval is None or plan.only != "all" else config.eval.chosen_sets()
        for name, chosen in sets.items():
            if chosen.tasks is None or not _is_here(chosen.tasks):
                continue
            path = f"eval.sets.{name}.tasks"
            source = await start_driver(stack, plan.required, context, "tasks", chosen.tasks, path)
            surveys = survey_tasks(
                config, source, {chosen.split: 0}, lengths, COUNTING_S, path=path, use=chosen.tasks.use
            )
            lines += [f"eval.sets.{name}: {line}" for line in describe_surveys(surveys, lengths)]
    return lines


def _is_here(section: PluginChoice | Mix) -> bool:
    """Return whether all sources of a section can be read without a download."""
    rules = section.rules if isinstance(section, Mix) else (section,)
    plugins = [load_plugin("tasks", rule) for rule in rules]
    return all(issubclass(one.cls, TaskSource) and one.cls.is_here(one.config) for one in plugins)


def _check_demonstrations(config: RunConfig, sft: SFTConfig, tokenizer: ChatTokenizer, form: ReplyForm) -> list[str]:
    """Read the first rows of each file of demonstrations, and return lines about those that are too long. Raises
    `ConfigError`."""
    lines = []
    places = {"sft.demonstrations.data": sft.demonstrations.data}
    places |= {f"sft.stages.{i}.data": stage.data for i, stage in enumerate(sft.stages)}
    longest = longest_sequence(sft, config.model)
    for key, paths in places.items():
        here = [path for path in paths if path.exists()]  # others are read from the hub when the run needs them
        read = read_demonstrations(here, tokenizer, form, key=key, tools=sft.demonstrations.tools, most=MOST_ROWS)
        found = find_overlong(read, longest)
        if read:
            lines.append(f"{key}: {len(read)} demonstrations read")
        if found and longest is not None:
            lines.append(describe_overlong(found, len(read), longest, sft.overlong, f" of {key}"))
    return lines


def _make_form(config: RunConfig, context: DriverContext) -> ReplyForm:
    built = build_driver("tool_format", config.session.tool_format, context, "session.tool_format")
    assert isinstance(built, ToolFormat), "the registry checks it"
    return ReplyForm(built, config.session.thoughts, config.session.control_tokens)
