"""Rows of a data set as demonstrations: the reader `rows` of the entry-point group `ale.readers`.

A row has `messages`, of which every reply of the assistant is trained on, or `prompt` and `completion` (each text, or a
list of messages), of which the completion's are; the names and forms are TRL's. The column `tools` may list the tools
that the model could call, in OpenAI's form or as names of Python functions (`./tools.py:search`). Each row is a
trajectory without a score, recorded as the policy's own rollouts are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ale.errors import AleError, ConfigError
from ale.messages import Message, ToolSpec
from ale.registry.validation import one_line_error
from ale.session.recorder import Recorder
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import ChatTokenizer
from ale.task import TRAIN
from ale.trajectory import Trajectory
from ale_data.chat_rows import read_messages, read_tools
from ale_data.demonstrator import read_completion
from ale_data.open_tables import open_path
from ale_data.tables import Table

MESSAGES, PROMPT, COMPLETION, TOOLS = "messages", "prompt", "completion", "tools"


def read_trajectories(
    path: Path, tokenizer: ChatTokenizer, form: ReplyForm | None, tools: Sequence[Any] = ()
) -> Iterator[Trajectory]:
    """Yield the demonstrations of a file or of a folder of Hugging Face datasets, in tokens of `tokenizer`. `tools` are
    those of rows without a column `tools`, in the forms of the column.

    Raises `ConfigError` with file and line for a wrong row, and for data without these columns."""
    table = _training_table(str(path), open_path(str(path)))
    if not _has_demonstrations(columns := table.columns()):
        raise ConfigError(
            f"{path} holds no demonstrations in rows: it has the columns {', '.join(columns)}, and '{MESSAGES}' is "
            f"needed, or '{PROMPT}' and '{COMPLETION}'. From other columns, the task source 'jsonl' demonstrates "
            "(columns.completion)."
        )
    for number, row in enumerate(table.rows(), 1):
        try:
            messages, first, own = read_demonstration(row.values, tools)
            messages = tuple(_without_end(message, tokenizer) for message in messages)
            yield _record(f"{path.stem}-{number}", messages, first, own, Recorder(tokenizer, form))
        except ValueError as error:
            raise ConfigError(f"{row.place}: {error}.") from None
        except ConfigError:
            raise
        except AleError as error:  # a chat template that does not take these messages
            raise ConfigError(f"{row.place}: {one_line_error(error)}.") from error


def read_demonstration(values: Any, tools: Sequence[Any] = ()) -> tuple[tuple[Message, ...], int, tuple[ToolSpec, ...]]:
    """Return the messages of a row, the number of those that are only context, and the tools.

    Raises `ValueError` with a sentence without a full stop."""
    found = _in_column(TOOLS, read_tools, list(tools) if values.get(TOOLS) is None else values[TOOLS])
    if values.get(MESSAGES) is not None:
        messages, first = _in_column(MESSAGES, read_messages, values[MESSAGES]), 0
    elif values.get(PROMPT) is not None and values.get(COMPLETION) is not None:
        before = _in_column(PROMPT, _read_prompt, values[PROMPT])
        messages = (*before, *_in_column(COMPLETION, _read_reply, values[COMPLETION]))
        first = len(before)
    else:
        null = ", ".join(f"'{name}'" for name in (MESSAGES, PROMPT, COMPLETION) if values.get(name) is None)
        raise ValueError(f"{null} are missing or null, and '{MESSAGES}', or '{PROMPT}' and '{COMPLETION}', are needed")
    if not any(message.role == "assistant" for message in messages[first:]):
        raise ValueError("the assistant says nothing in it, so there is nothing to train on")
    if messages[0].role == "assistant":
        raise ValueError("it begins with the assistant, and something must come before its reply")
    return messages, first, found


def _without_end(message: Message, tokenizer: ChatTokenizer) -> Message:
    """Return a reply without an end token that the row itself has."""
    if message.role != "assistant":
        return message
    content = tokenizer.without_end(message.content)
    return message if content == message.content else replace(message, content=content)


def _training_table(path: str, tables: dict[str, Table]) -> Table:
    """Return the split that is trained on. Raises `ConfigError` if it is not clear which."""
    if TRAIN not in tables and len(tables) > 1:
        raise ConfigError(
            f"{path} has the splits {', '.join(tables)}, and none is '{TRAIN}': give the folder of one split."
        )
    return tables.get(TRAIN) or next(iter(tables.values()))


def _has_demonstrations(columns: Collection[str]) -> bool:
    return MESSAGES in columns or (PROMPT in columns and COMPLETION in columns)


def _record(
    name: str, messages: tuple[Message, ...], first: int, tools: tuple[ToolSpec, ...], recorder: Recorder
) -> Trajectory:
    """Return the trajectory of a conversation; what the assistant says from message `first` on are its chunks."""
    for i, message in enumerate(messages):
        if message.role == "assistant" and i >= first:
            recorder.add_unsampled(recorder.prompt(messages[:i], tools), message)
    return Trajectory(
        id=name,
        task_id=name,
        split=TRAIN,
        stage="rows",
        step=0,
        group=name,
        seed=0,
        policy_version=0,
        sequences=recorder.sequences,
        chunks=recorder.chunks,
    )


def _read_prompt(value: Any) -> tuple[Message, ...]:
    if isinstance(value, list):
        return read_messages(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"it must be text or a list of messages, not {value!r:.60}")
    return (Message("user", value),)


def _read_reply(value: Any) -> tuple[Message, ...]:
    """Return all messages of a completion, which may hold answers of tools between the assistant's."""
    return read_messages(value) if isinstance(value, list) else read_completion(value)


def _in_column(name: str, read: Any, value: Any) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"the column '{name}': {error}") from None
