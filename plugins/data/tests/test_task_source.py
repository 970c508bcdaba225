"""Rows become tasks: mapped columns, splits by file, column, share and name, ids, order; mistakes are sentences."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ale.errors import ConfigError, TaskError
from ale.messages import Message
from ale.specs.driver import DriverContext
from ale.task import Task
from ale_data import JsonlTasks

ROWS = [{"question": f"{i} + {i} =", "answer": str(2 * i), "level": i % 3} for i in range(40)]
Source = Callable[..., JsonlTasks]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Make a source in a folder of its own, of `data.jsonl` with these rows."""
    monkeypatch.chdir(tmp_path)

    def make(rows: Sequence[dict[str, Any]] = ROWS, **settings: Any) -> JsonlTasks:
        write("data.jsonl", rows)
        settings = settings if "files" in settings else {"path": "data.jsonl", **settings}
        return JsonlTasks(JsonlTasks.Config(**settings), DriverContext())

    return make


def write(name: str, rows: Sequence[dict[str, Any]]) -> None:
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def one(source: Source, row: dict[str, Any], **columns: Any) -> Task:
    """The task of a single row."""
    (task,) = source([row], shares={}, columns=columns).tasks("train")
    return task


# -- what a row becomes ------------------------------------------------------------------------------------------------


def test_a_rewards_arguments_are_columns_by_their_names_and_the_answer(source: Source) -> None:
    row = {
        "problem": "1 + 1 =",
        "solution": "2",
        "data_source": "sums",
        "level": "easy",
        "year": 2020,
        "topic": ["a", "b"],
    }
    task = one(source, row, prompt="problem", answer="solution", tags=["level", "year", "topic"])
    assert task == Task(
        id="train-1",
        instruction="1 + 1 =",
        tags=("easy", "year:2020", "a", "b"),
        metadata={"answer": "2", **{key: value for key, value in row.items() if key != "problem"}},
    )


def test_a_key_inside_a_column_can_be_named_as_verl_rows_need(source: Source) -> None:
    row = {"prompt": [{"role": "user", "content": "Hi?"}], "reward_model": {"ground_truth": "7", "style": "rule"}}
    task = one(source, row, answer="reward_model.ground_truth")
    assert (task.instruction, task.metadata) == ("Hi?", {"answer": "7", "reward_model": row["reward_model"]})


@pytest.mark.parametrize("name", ["prompt", "messages", "question"])
def test_the_usual_columns_of_a_prompt_need_no_mapping(source: Source, name: str) -> None:
    assert one(source, {"x": 1, name: [{"role": "user", "content": "Hi?"}]}).instruction == "Hi?"


def test_a_chat_ends_with_the_instruction_and_the_rest_comes_before(source: Source) -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Who?"},
    ]
    task = one(source, {"prompt": chat})
    assert task.instruction == "Who?"
    assert task.messages == (Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Hello"))
    assert one(source, {"prompt": "Who?", "s": "Be brief."}, system="s").messages == task.messages[:1]
    assert one(source, {"prompt": "Who?", "s": None}, system="s").messages == ()


# -- demonstrations ----------------------------------------------------------------------------------------------------


async def replies(made: JsonlTasks) -> list[Message]:
    """What the demonstrator of the first task answers, until it hands over."""
    task = next(iter(made.tasks("train")))
    responder = made.demonstrator(task, 0)
    assert responder is not None
    out = []
    while (reply := await responder([Message("user", task.instruction)], ())) is not None:
        out.append(reply.message)
    return out


async def test_a_completion_is_demonstrated_and_stays_a_column(source: Source) -> None:
    made = source(columns={"completion": "answer"}, shuffle=False, shares={})
    assert await replies(made) == [Message("assistant", "0")]
    assert next(iter(made.tasks("train"))).metadata == {"answer": "0", "completion": "0", "level": 0}


async def test_a_chat_that_ends_with_the_assistant_demonstrates_it_call_by_call(source: Source) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    chat = [
        {"role": "user", "content": "Hi?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
        {"role": "assistant", "content": "Seven."},
    ]
    first, second = await replies(source([{"messages": chat}], shares={}, columns={"completion": "messages"}))
    assert (first.tool_calls[0].name, second.content) == ("add", "Seven.")
    completion = [{"role": "assistant", "content": "Seven."}]
    made = source([{"prompt": "Hi?", "done": completion}], shares={}, columns={"completion": "done"})
    assert await replies(made) == [Message("assistant", "Seven.")]


def test_demonstrations_are_a_capability_only_where_a_completion_is_named(source: Source) -> None:
    assert JsonlTasks.provides(source().config) == frozenset()
    assert JsonlTasks.provides(source(columns={"completion": "answer"}).config) == {"demonstrations"}
    made = source(
        [{"question": "a", "x": None}, {"question": "b", "x": 3}], columns={"completion": "x"}, shuffle=False, shares={}
    )
    empty, wrong = made.tasks("train")
    assert made.demonstrator(empty, 0) is None
    with pytest.raises(TaskError, match="The completion of the task train-2 cannot be read: it must be text or a list"):
        made.demonstrator(wrong, 0)


# -- splits, order, ids ------------------------------------------------------------------------------------------------


def ids(made: JsonlTasks, split: str = "train") -> list[str]:
    return [task.id for task in made.tasks(split)]


def test_a_tenth_is_held_out_of_one_file_by_default(source: Source) -> None:
    made = source()
    train, held_out = ids(made), ids(made, "heldout")
    assert (len(train), len(held_out)) == (36, 4)
    assert {*train, *held_out} == {f"train-{number}" for number in range(1, 41)}, "the row's number, wherever it goes"
    assert ids(source()) == train
    assert {*ids(source(seed=1), "heldout")} != {*held_out}


def test_shares_may_name_several_splits_and_train_itself(source: Source) -> None:
    made = source(shares={"train": 0.5, "heldout": 0.25, "test": 0.25})
    assert [len(ids(made, split)) for split in ("train", "heldout", "test")] == [20, 10, 10]


def test_equal_prompts_are_never_both_trained_on_and_held_out(source: Source) -> None:
    made = source([{"question": f"{i % 10} + 1 ="} for i in range(200)], shares={"heldout": 0.3})
    train, held_out = ({task.instruction for task in made.tasks(split)} for split in ("train", "heldout"))
    assert (len(train), len(held_out)) == (7, 3)


def test_a_split_that_gets_no_row_is_a_sentence(source: Source) -> None:
    with pytest.raises(ConfigError, match=r"leave no row for the split 'train'\..* 9 rows have 1 different prompts"):
        ids(source([{"question": "Solve it.", "grid": i} for i in range(9)]))


def test_splits_by_file_by_column_and_by_another_name(source: Source) -> None:
    write("a.jsonl", ROWS[:5])
    write("b.jsonl", ROWS[5:7])
    write("c.jsonl", ROWS[7:8])
    made = source(files={"train": ["a.jsonl", "b.jsonl"], "heldout": "c.jsonl"}, shuffle=False)
    assert (ids(made), ids(made, "heldout")) == ([f"train-{i}" for i in range(1, 8)], ["heldout-1"])
    by_column = source(columns={"split": "level"}, splits={"train": "0", "heldout": "1"})
    assert (len(ids(by_column)), len(ids(by_column, "heldout")), len(ids(by_column, "2"))) == (14, 13, 13)
    named = source(files={"train": "a.jsonl", "validation": "c.jsonl"})
    assert ids(named, "heldout") == ids(named, "validation") == ["validation-1"], (
        "'heldout' is found by its usual names"
    )


def test_the_order_is_shuffled_by_seed_unless_it_is_the_datas(source: Source) -> None:
    orders = [ids(source(shares={}, seed=seed)) for seed in (0, 0, 1)]
    in_order = ids(source(shares={}, shuffle=False))
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(in_order)
    assert in_order == [f"train-{number}" for number in range(1, 41)]
    assert ids(source(shares={}, limit=7)) == orders[0][:7]
    shuffled = {task.id: task for task in source(shares={}).tasks("train")}
    assert shuffled == {task.id: task for task in source(shares={}, shuffle=False).tasks("train")}


def test_unshuffled_rows_are_streamed_and_a_wrong_one_is_found_when_it_comes(source: Source) -> None:
    made = source([*ROWS[:3], {"question": None}], shares={}, shuffle=False)
    stream = iter(made.tasks("train"))
    assert [next(stream).id for _ in range(3)] == ["train-1", "train-2", "train-3"]
    with pytest.raises(ConfigError, match=r"data\.jsonl, line 4: the prompt's column 'question' is null"):
        next(stream)
    with pytest.raises(ConfigError, match=r"data\.jsonl, line 4: "):
        next(iter(source([*ROWS[:3], {"question": None}], shares={}).tasks("train")))


def test_ids_of_a_column_must_be_unique(source: Source) -> None:
    rows = [{"question": "a", "uid": 7}, {"question": "b", "uid": "x"}]
    assert ids(source(rows, columns={"id": "uid"}, shares={}, shuffle=False)) == ["7", "x"]
    write("a.jsonl", rows)
    made = source(files={"train": "a.jsonl", "heldout": "a.jsonl"}, columns={"id": "uid"})
    assert sorted(ids(made, "heldout")) == ["heldout-7", "heldout-x"], "several files may use the same ids"
    twice = [*rows, {"question": "c", "uid": 7}]
    with pytest.raises(ConfigError, match=r"row 3: the id '7' in the column 'uid' is that of .*row 1 too; leave out"):
        ids(source(twice, columns={"id": "uid"}))
    with pytest.raises(ConfigError, match=r"line 3: there is a second task with the id '7'"):
        ids(source(twice, columns={"id": "uid"}, shares={}, shuffle=False))


async def test_the_start_reads_all_rows_and_leaves_nothing_open(source: Source) -> None:
    async with source([*ROWS, {"question": "last"}]) as made:
        os.rename("data.jsonl", "moved.jsonl")
        with pytest.raises(ConfigError, match=r"data\.jsonl cannot be read: No such file"):
            next(iter(made.tasks("train")))
    with pytest.raises(ConfigError, match=r"data\.jsonl, line 41: "):
        await source([*ROWS, {"question": ""}]).start()


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "columns", "sentence"),
    [
        ({"question": None}, {}, "the prompt's column 'question' is null"),
        ({"other": 1}, {}, "it has no prompt, only the columns other"),
        ({"other": 1}, {"prompt": "question"}, "the prompt's column 'question' is missing; the row has other"),
        ({"question": " "}, {}, "the prompt's column 'question' is empty"),
        ({"question": 3}, {}, "must be text or a list of messages, not 3"),
        ({"question": [{"role": "bot"}]}, {}, "the column 'question': message 1: its role is 'bot'"),
        (
            {"question": [{"role": "system", "content": "x"}]},
            {},
            "the messages in the column 'question' have no user message",
        ),
        ({"question": [{"role": "user", "content": ""}]}, {}, "have nothing in its last user message|nothing in the"),
        (
            {"question": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}]},
            {},
            "end with a tool's answer; a task begins with a user message",
        ),
        (
            {"question": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]},
            {},
            "have a system message after the last user message",
        ),
        (
            {"question": "x", "answer": 3},
            {"system": "answer"},
            "the column 'answer' must be text, for it is the system",
        ),
        (
            {"question": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}], "answer": "z"},
            {"system": "answer"},
            "have a system message already; leave out columns.system",
        ),
        ({"question": "x"}, {"id": "answer"}, "the column 'answer' must be an id, a word or number, not None"),
        ({"question": "x"}, {"split": "answer"}, "the column 'answer' must name the row's split, not None"),
    ],
)
def test_a_wrong_row_is_a_sentence_with_file_and_line(
    source: Source, row: dict[str, Any], columns: dict[str, str], sentence: str
) -> None:
    good = {"question": "x", "answer": "y"}
    with pytest.raises(ConfigError, match=rf"^The task source 'jsonl': data\.jsonl, line 2: .*{sentence}"):
        ids(source([good, row], columns=columns))


def test_a_wrong_column_is_found_when_a_run_is_checked(source: Source) -> None:
    for columns, key in (({"prompt": "questoin"}, "prompt"), ({"tags": ["levle"]}, "tags")):
        with pytest.raises(
            ConfigError, match=rf"no column .*columns\.{key} names: data\.jsonl has the columns question, answer, level"
        ):
            JsonlTasks.needs(source(columns=columns).config)
    nested = source(
        [{"question": "x", "reward_model": {"ground_truth": "7"}}], columns={"answer": "reward_model.truth"}
    )
    with pytest.raises(
        ConfigError, match=r"columns question, reward_model, and 'reward_model' the keys ground_truth\."
    ):
        JsonlTasks.needs(nested.config)
    with pytest.raises(ConfigError, match=r"Which column is the prompt\? data\.jsonl has the columns a, b; name one"):
        JsonlTasks.needs(source([{"a": 1, "b": 2}]).config)
    with pytest.raises(ConfigError, match=r"There is no file or folder gone\.jsonl"):
        JsonlTasks.needs(source(path="gone.jsonl").config)
    assert JsonlTasks.needs(source(path="openai/gsm8k").config) == {}, (
        "a name of the hub is looked up when a run starts"
    )


def test_an_unknown_split_names_those_that_there_are(source: Source) -> None:
    with pytest.raises(ConfigError, match=r"has the splits heldout, train, not 'test': say what .*\{test: heldout\}"):
        ids(source(), "test")
    with pytest.raises(
        ConfigError, match=r"has the split train, not 'heldout': hold some rows out \(shares: \{heldout"
    ):
        ids(source(shares={}), "heldout")
    with pytest.raises(ConfigError, match=r"has the splits 0, 1, 2, not '9', which splits\.train names"):
        ids(source(columns={"split": "level"}, splits={"train": "9"}))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "give either 'path', or 'files'"),
        ({"path": "a.csv", "files": {"train": "b.csv"}}, "give either 'path', or 'files'"),
        ({"files": {"train": "b.csv"}, "shares": {"heldout": 0.1}}, "and so does 'shares'; leave one out"),
        ({"files": {"train": "b.csv"}, "columns": {"split": "x"}}, "and so does 'columns.split'; leave one out"),
        (
            {"path": "a.csv", "shares": {"heldout": 0.1}, "columns": {"split": "x"}},
            "and so does 'shares'; leave one out",
        ),
        ({"files": {"train": []}}, "each split in 'files' needs at least one file"),
        ({"path": "a.csv", "shares": {"heldout": 0}}, "each share must be above 0"),
        ({"path": "a.csv", "shares": {"heldout": 0.7, "test": 0.7}}, "the shares add up to 1.4"),
        ({"path": "a.csv", "shares": {"heldout": 0.1, "train": 0.1}}, "the shares add up to 0.2, .* leave 'train' out"),
        ({"path": "a.csv", "columns": {"promt": "x"}}, "Extra inputs"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        JsonlTasks.Config(**settings)
