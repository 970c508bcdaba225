"""Makes a task of a row: which column is the prompt, the answer, the tags, and where the others go."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from ale.errors import ConfigError
from ale.messages import Message
from ale.registry.validation import nearest_hint
from ale.specs.driver import PluginConfig
from ale.task import Task
from ale_data.chat_rows import read_messages
from ale_data.tables import Row

PROMPTS = ("prompt", "messages", "question")
"""The columns that are the prompt if none is named: those of TRL and verl, of chats, and of verifiers."""
ANSWER, COMPLETION = "answer", "completion"


class Columns(PluginConfig):
    """Which column of the data is what. `a.b` is the key `b` of the objects in the column `a`."""

    prompt: str | None = Field(
        None,
        description="The question: text, or a list of messages, whose last user message is the instruction. null: the "
        f"first of {', '.join(PROMPTS)} that there is.",
    )
    system: str | None = Field(None, description="Text of a system message before the prompt.")
    answer: str | None = Field(None, description="What a reward gets as `answer`; null: the column `answer`, if any.")
    tags: tuple[str, ...] = Field(
        (), description="Columns whose values are tags: words or lists of words; other values become `column:value`."
    )
    id: str | None = Field(None, description="The task's id, unique in the data; null: the split and the row's number.")
    split: str | None = Field(None, description="The name of the row's split.")
    completion: str | None = Field(
        None,
        description="What a demonstrator answers: text, or a list of messages. The prompt's own column: the "
        "assistant's messages after the last user message.",
    )

    @field_validator("tags", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield each key of this section that names a column, and the column."""
        for key, value in self:
            yield from ((key, name) for name in (value if isinstance(value, tuple) else (value,)) if name is not None)

    def prompt_in(self, columns: Collection[str]) -> str:
        """Return the column of the prompt. Raises `KeyError` if none is named and none has a usual name."""
        found = self.prompt or next((name for name in PROMPTS if name in columns), None)
        if found is None:
            raise KeyError
        return found

    def check(self, rows: Sequence[Row], where: str) -> None:
        """Raise `ConfigError` with the columns that there are, if one that is named is in none of a table's first
        rows."""
        columns = tuple(dict.fromkeys(key for row in rows for key in row.values))
        there = f"{where} has the columns {', '.join(columns)}"
        for key, name in self.named():
            above = name.rpartition(".")[0]
            inner = [*dict.fromkeys(k for row in rows for k in _keys(look_up(row.values, above)))] if above else []
            if name not in columns and name.rpartition(".")[2] not in inner:
                inside = f", and '{above}' the keys {', '.join(inner)}" if inner else ""
                raise ConfigError(
                    f"There is no column '{name}', which columns.{key} names: {there}{inside}."
                    f"{nearest_hint(name, [*columns, *(f'{above}.{k}' for k in inner)])}"
                )
        try:
            self.prompt_in(columns)
        except KeyError:
            raise ConfigError(f"Which column is the prompt? {there}; name one with columns: {{prompt: ...}}.") from None


@dataclass(frozen=True, slots=True)
class Question:
    """What the agent is asked: the instruction, the messages before it, and the answer shown, as messages of a list."""

    instruction: str
    before: tuple[Message, ...] = ()
    completion: tuple[Message, ...] = ()


def read_question(row: Row, columns: Columns) -> Question:
    """Read the prompt of a row. Raises `ConfigError` with the row's place."""
    try:
        return _read_question(row, columns)
    except ValueError as error:
        raise ConfigError(f"{row.place}: {error}.") from None


def make_task(row: Row, question: Question, columns: Columns, task_id: str) -> Task:
    """Return the task of a row; all columns but those of the prompt and the system message are in its metadata."""
    taken = {columns.prompt_in(row.values), columns.system}
    metadata = {key: value for key, value in row.values.items() if key not in taken}
    if columns.answer is not None:
        metadata[ANSWER] = look_up(row.values, columns.answer)
    shown = [message.to_openai() for message in question.completion]
    if columns.completion not in (None, columns.prompt_in(row.values)):
        metadata[COMPLETION] = look_up(row.values, str(columns.completion))
    elif shown:
        metadata[COMPLETION] = shown
    return Task(
        id=task_id,
        instruction=question.instruction,
        messages=question.before,
        tags=tuple(dict.fromkeys(tag for name in columns.tags for tag in _tags(name, look_up(row.values, name)))),
        metadata=metadata,
    )


def look_up(values: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column, or of a key of the objects in it (`a.b`); None if there is none."""
    if name in values:
        return values[name]
    value: Any = values
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _keys(value: Any) -> Collection[str]:
    return value.keys() if isinstance(value, Mapping) else ()


def _read_question(row: Row, columns: Columns) -> Question:
    try:
        name = columns.prompt_in(row.values)
    except KeyError:
        raise ValueError(f"it has no prompt, only the columns {', '.join(row.values)}") from None
    value = look_up(row.values, name)
    if value is None:
        missing = "is null" if name in row.values else "is missing; the row has " + ", ".join(row.values)
        raise ValueError(f"the prompt's column '{name}' {missing}")
    before: list[Message] = []
    system = look_up(row.values, columns.system) if columns.system else None
    if system is not None and not isinstance(system, str):
        raise ValueError(f"the column '{columns.system}' must be text, for it is the system message")
    if system:
        before.append(Message("system", system))
    if isinstance(value, str) and name != "messages":
        if not value.strip():
            raise ValueError(f"the prompt's column '{name}' is empty")
        return Question(value, tuple(before))
    if not isinstance(value, str | list):
        raise ValueError(f"the prompt's column '{name}' must be text or a list of messages, not {value!r:.60}")
    try:
        messages = read_messages(value)
    except ValueError as error:
        raise ValueError(f"the column '{name}': {error}") from None
    return _split_messages(name, before, messages)


def _split_messages(name: str, before: list[Message], messages: tuple[Message, ...]) -> Question:
    last = max((i for i, message in enumerate(messages) if message.role == "user"), default=None)
    if last is None or not messages[last].content.strip():
        fault = "no user message" if last is None else "nothing in its last user message"
        raise ValueError(f"the messages in the column '{name}' have {fault}")
    after = messages[last + 1 :]
    if any(message.role == "system" for message in after):
        raise ValueError(f"the messages in the column '{name}' have a system message after the last user message")
    if after and after[-1].role != "assistant":
        raise ValueError(
            f"the messages in the column '{name}' end with a tool's answer; a task begins with a user message"
        )
    if before and messages[0].role == "system":
        raise ValueError(f"the messages in the column '{name}' have a system message already; leave out columns.system")
    return Question(messages[last].content, (*before, *messages[:last]), after)


def _tags(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _tags(name, item)
    elif isinstance(value, str):
        if value:
            yield value
    elif value is not None:
        yield f"{name}:{str(value).lower() if isinstance(value, bool) else value}"
