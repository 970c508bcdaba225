"""Whatever a file holds, it becomes tasks that survive JSON, or a sentence: never a traceback."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ale.errors import AleError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.task import Task
from ale_data import JsonlTasks
from ale_data.demonstrations import read_trajectories

WORDS = st.sampled_from(["user", "assistant", "system", "tool", "add", "", '{"a": 1}', "[]", "[{}]", "\ud800", "é\0"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | WORDS
KEYS = st.sampled_from(
    [
        "role",
        "content",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "id",
        "type",
        "text",
        "parameters",
        "tool_call_id",
    ]
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))
COLUMNS = ("prompt", "messages", "completion", "tools", "uid", "part")
CALLS = st.lists(st.fixed_dictionaries({"name": st.just("add"), "arguments": st.just({"a": 1}) | VALUES}), max_size=2)
MESSAGES = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "assistant", "tool"]),
        "content": st.text(min_size=1, max_size=3) | VALUES,
    },
    optional={"tool_calls": CALLS},
)
CHATS = st.lists(MESSAGES, max_size=3).map(lambda rest: [{"role": "user", "content": "1 + 1?"}, *rest])
TOOLS = st.just([{"function": {"name": "add"}}]) | VALUES
TEXTS = st.text(min_size=1, max_size=4)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"prompt": TEXTS | CHATS},
        optional={
            "messages": CHATS | VALUES,
            "completion": TEXTS | CHATS | VALUES,
            "tools": TOOLS,
            "uid": st.integers() | TEXTS,
            "part": VALUES,
        },
    ),
    max_size=3,
)
MAPPINGS = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.sampled_from([*COLUMNS, "part.name"]),
        "completion": st.sampled_from(COLUMNS),
        "answer": st.sampled_from([*COLUMNS, "part.name"]),
        "system": st.sampled_from(COLUMNS),
        "tags": st.lists(st.sampled_from(COLUMNS), max_size=2),
        "id": st.just("uid"),
    },
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows") / "a.jsonl"


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=ROWS, columns=MAPPINGS, shuffle=st.booleans())
def test_rows_are_tasks_that_survive_json_or_a_sentence(
    file: Path, rows: list[dict[str, Any]], columns: dict[str, Any], shuffle: bool
) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = JsonlTasks.Config(path=str(file), columns=columns, shuffle=shuffle, shares={})
    source = JsonlTasks(config, DriverContext())
    with suppress(AleError):
        for task in source.tasks("train"):
            assert Task.model_validate_json(task.model_dump_json()) == task
            with suppress(AleError):
                source.demonstrator(task, 0)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=ROWS)
def test_rows_are_demonstrations_or_a_sentence(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with suppress(AleError):
        for made in read_trajectories(file, byte_tokenizer(), None):
            assert made.chunks


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.binary(max_size=60), ending=st.sampled_from([".jsonl", ".csv", ".tsv", ".parquet", ".json"]))
def test_any_bytes_are_read_or_a_sentence(file: Path, content: bytes, ending: str) -> None:
    path = file.with_suffix(ending)
    path.write_bytes(content)
    with suppress(AleError):
        config = JsonlTasks.Config(path=str(path), columns={"prompt": "0"}, shares={})
        for task in JsonlTasks(config, DriverContext()).tasks("train"):
            assert Task.model_validate_json(task.model_dump_json()) == task
