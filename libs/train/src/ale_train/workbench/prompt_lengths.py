"""Tasks before their first episode: how many there are, and which have no room in the context (`tasks.overlong`).

1. The first prompt of a task is that of the call which the scaffold says it will make (`Scaffold.first_call`). Of a
   scaffold that cannot say, it has at least the task's messages and instruction; what it adds is found by the episode.
2. `survey_split` counts the tasks of a split and looks at those that the run will take; `refuse_overlong` and
   `describe_surveys` say what was found.
3. `PromptLengths.keep` is what the run's tasks pass through: tasks without room are left out of every epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ale.config.episode import EpisodeConfig
from ale.errors import AleError, ConfigError, RequestRefused
from ale.messages import Message, ModelCall
from ale.registry.drivers import build_driver, load_plugin
from ale.registry.validation import as_plugin_error
from ale.rollout.selection import carries
from ale.session.recorder import Recorder
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import ChatTokenizer
from ale.specs.choice import Overlong, PluginChoice
from ale.specs.driver import Driver, DriverContext
from ale.specs.scaffold import Scaffold
from ale.specs.tasks import TaskSource
from ale.task import HELDOUT, TRAIN, Task

MOST_EXAMINED = 10_000
"""At most so many prompts of a split are counted before the run; those of later tasks when they are taken."""
MOST_DROPPED = 10_000
"""After so many tasks without room, one after the other, none is expected to follow that has some."""
SHOWN = 3
COUNTING_S = 2.0


@dataclass
class PromptLengths:
    """Counts the tokens of tasks' first prompts. `most` is the context, prompt and reply together."""

    tokenizer: ChatTokenizer
    form: ReplyForm
    scaffolds: Sequence[tuple[tuple[str, ...], Driver | None]]
    """The run's scaffolds, each with the tags of the tasks that it is for; None: one that cannot say its first call."""
    most: int
    overlong: Overlong
    _known: dict[tuple[str, str], int] = field(default_factory=dict)
    _around: dict[tuple[object, ...], int] = field(default_factory=dict)
    """The tokens of prompts with almost empty messages, by these messages' roles and the tools."""

    def excess(self, split: str, task: Task) -> int:
        """Return the number of tokens of the task's first prompt if they leave no room for a reply, else 0."""
        key = (split, task.id)
        if key not in self._known:
            tokens = self._count(task)
            self._known[key] = tokens if tokens >= self.most else 0
        return self._known[key]

    def keep(self, split: str, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield the tasks that the run works on. Raises `ConfigError` if none of them has room, and with `fail` at the
        first without."""
        if self.overlong == "truncate":
            yield from tasks
            return
        dropped: list[tuple[str, int]] = []
        kept = 0
        for task in tasks:
            if not (tokens := self.excess(split, task)):
                kept, dropped = kept + 1, []
                yield task
                continue
            dropped.append((task.id, tokens))
            if self.overlong == "fail" or len(dropped) >= MOST_DROPPED:
                break
        if dropped and (self.overlong == "fail" or not kept or len(dropped) >= MOST_DROPPED):
            raise ConfigError(_refusal(split, dropped, len(dropped), self.most))

    def _count(self, task: Task) -> int:
        scaffold = next((one for when, one in self.scaffolds if carries(task.tags, when)), None)
        call = None
        if isinstance(scaffold, Scaffold):
            with as_plugin_error("The scaffold's first_call() crashed"):
                call = scaffold.first_call(task)
        if call is None:
            own = (Message("user", task.instruction),) if task.instruction else ()
            call = ModelCall((*task.messages, *own))
        try:
            return 0 if self._surely_fits(call) else self._tokens(call)
        except RequestRefused:  # the chat template does not take these messages, which the episode reports
            return 0

    def _tokens(self, call: ModelCall) -> int:
        return len(Recorder(self.tokenizer, self.form).prompt(call.messages, call.tools).token_ids)

    def _surely_fits(self, call: ModelCall) -> bool:
        """Return whether the prompt fits even if each byte of its messages is a token, which takes no rendering."""
        if any(message.tool_calls or message.reasoning for message in call.messages):
            return False
        shape = (*(message.role for message in call.messages), *(tool.name for tool in call.tools))
        if shape not in self._around:
            empty = tuple(replace(message, content="x") for message in call.messages)
            self._around[shape] = self._tokens(replace(call, messages=empty))
        texts = sum(len(message.content.encode("utf-8", "replace")) + 1 for message in call.messages)
        return self._around[shape] + texts < self.most


def measure_prompts(config: EpisodeConfig, tokenizer: ChatTokenizer, form: ReplyForm, most: int) -> PromptLengths:
    """Return what counts the prompts of a run. Raises `AleError` if a scaffold cannot be built."""
    section = config.scaffold
    rules: list[tuple[str, tuple[str, ...], PluginChoice]]
    if isinstance(section, PluginChoice):
        rules = [("scaffold", (), section)]
    else:
        rules = [(f"scaffold.select.{i}", rule.when, rule) for i, rule in enumerate(section.rules)]
    scaffolds = []
    for path, when, choice in rules:
        cls = load_plugin("scaffold", choice, path).cls
        assert issubclass(cls, Scaffold), "the registry checks it"
        says = cls.first_call is not Scaffold.first_call  # only such a one is built, which may be costly
        built = build_driver("scaffold", choice, DriverContext(seed=config.seed), path) if says else None
        scaffolds.append((when, built))
    return PromptLengths(tokenizer, form, scaffolds, min(most, config.rollout.max_context), config.tasks.overlong)


@dataclass(frozen=True)
class SplitSurvey:
    """What is known of a split before the run."""

    split: str
    count: int
    """The number of its tasks, or of those that were read."""
    complete: bool
    """Whether `count` is all of them."""
    examined: int
    """How many prompts were counted."""
    overlong: tuple[tuple[str, int], ...]
    """The tasks among them that leave no room for a reply, with the tokens of their prompts."""


def survey_split(
    source: TaskSource,
    split: str,
    tasks: Iterator[Task],
    lengths: PromptLengths | None,
    examine: int,
    *,
    look: Callable[[Task], None] = lambda task: None,
    counting_s: float = COUNTING_S,
) -> SplitSurvey:
    """Count the tasks of a split, for at most so many seconds where the source cannot say, and the tokens of the first
    `examine` prompts; `look` sees these tasks, too. Raises `AleError` if the source cannot make the first."""
    overlong: list[tuple[str, int]] = []
    count, complete, began = 0, False, time.monotonic()

    def take() -> Task | None:
        """Return the next task; None at the end, or where one cannot be made that the run may never take."""
        nonlocal complete
        try:
            task = next(tasks, None)
        except AleError:
            if not count:
                raise
            return None
        complete = task is None
        return task

    most = min(examine, MOST_EXAMINED)
    while count < most and (task := take()) is not None:
        count += 1
        look(task)
        if lengths is not None and (tokens := lengths.excess(split, task)):
            overlong.append((task.id, tokens))
    examined = count
    if (size := source.size(split)) is not None:
        return SplitSurvey(split, size, True, examined, tuple(overlong))
    if examined == most:  # there may be more
        while time.monotonic() - began < counting_s and take() is not None:
            count += 1
    return SplitSurvey(split, count, complete, examined, tuple(overlong))


def refuse_overlong(survey: SplitSurvey, lengths: PromptLengths) -> None:
    """Refuse a split without a task that has room, and with `fail` one with a task that has none. Raises
    `ConfigError`."""
    if not survey.overlong or lengths.overlong == "truncate":
        return
    if lengths.overlong == "fail" or (survey.complete and len(survey.overlong) == survey.count):
        raise ConfigError(_refusal(survey.split, survey.overlong, survey.examined, lengths.most))


def describe_surveys(surveys: Sequence[SplitSurvey], lengths: PromptLengths | None) -> list[str]:
    """Return lines about the numbers of tasks, and about those without room."""
    names = {TRAIN: "train", HELDOUT: "held out"}
    counts = ", ".join(f"{'' if s.complete else 'more than '}{s.count} {names.get(s.split, s.split)}" for s in surveys)
    lines = [f"tasks: {counts}"] if surveys else []
    if lengths is not None:
        done = "their beginning is cut off" if lengths.overlong == "truncate" else "they are dropped"
        lines += [
            f"tasks.overlong: {_count_of(s.split, s.overlong, s.examined, lengths.most)}; {done}"
            for s in surveys
            if s.overlong
        ]
    return lines


def _refusal(split: str, overlong: Sequence[tuple[str, int]], of: int, most: int) -> str:
    return (
        f"tasks.overlong: {_count_of(split, overlong, of, most)}. Raise rollout.max_context if the model can take "
        "more, or set tasks.overlong to 'truncate' (cut off the beginning) or 'drop' (leave such tasks out, where "
        "others are left)."
    )


def _count_of(split: str, overlong: Sequence[tuple[str, int]], of: int, most: int) -> str:
    shown = ", ".join(f"{name}: {tokens} tokens" for name, tokens in overlong[:SHOWN])
    more = ", ..." if len(overlong) > SHOWN else ""
    return (
        f"{len(overlong)} of {of} tasks looked at in the split '{split}' have a first prompt that leaves no room for a "
        f"reply (context: {most} tokens; {shown}{more})"
    )
