"""Rows of messages, or of prompt and completion, are demonstrations for `sft`: loss only on the assistant's turns."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from ale.errors import ConfigError
from ale.messages import Message, ToolCall, ToolSpec
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import ChatTokenizer, byte_tokenizer, train_tokenizer
from ale.trajectory import Trajectory
from ale_train.supervised.demonstrations import read_demonstrations

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CHAT = [
    {"role": "system", "content": "Add."},
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "2", "tool_call_id": "c1"},
    {"role": "assistant", "content": "Two."},
]
LOOK = Message("assistant", "", (ToolCall("c1", "add", '{"a": 1}'),))
DONE = Message("assistant", "Two.")


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def read(path: Path) -> list[Trajectory]:
    return read_demonstrations([path], byte_tokenizer())


def trained_on(trajectory: Trajectory, tokenizer: Any = None) -> list[str]:
    """The text of each chunk."""
    tokenizer = tokenizer or byte_tokenizer()
    return [tokenizer.decode(trajectory.sequences[c.sequence].token_ids[c.start : c.end]) for c in trajectory.chunks]


def spoken(*messages: Message) -> list[str]:
    return [f"{ReplyForm().write(message)}<|im_end|>" for message in messages]


def test_every_reply_of_a_chat_is_trained_on_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"messages": CHAT, "tools": TOOLS})
    (made,) = read(path)
    assert trained_on(made) == spoken(LOOK, DONE)
    (line,) = made.sequences
    assert line.tools == (ToolSpec("add", "Adds.", SCHEMA),)
    assert byte_tokenizer().decode(line.token_ids) == (
        byte_tokenizer().render(line.messages, line.tools, prompt=False).rstrip("\n")
    )
    assert (made.id, made.reward, [chunk.sampled for chunk in made.chunks]) == ("a-1", None, [False, False])
    tokenizer = train_tokenizer([byte_tokenizer().decode(line.token_ids)], 400)
    (again,) = read_demonstrations([path], tokenizer)
    assert trained_on(again, tokenizer) == spoken(LOOK, DONE)


@pytest.mark.parametrize(
    ("prompt", "completion", "expected"),
    [
        ("1 + 1?", "Two.", [DONE]),
        (CHAT[:2], "Two.", [DONE]),
        (CHAT[:4], CHAT[4:], [DONE]),
        (CHAT[:2], CHAT[2:], [LOOK, DONE]),
        ("1 + 1?", CHAT[2:], [LOOK, DONE]),
    ],
)
def test_a_completion_is_trained_on_and_replies_in_the_prompt_are_not(
    tmp_path: Path, prompt: Any, completion: Any, expected: list[Message]
) -> None:
    (made,) = read(write(tmp_path / "a.jsonl", {"prompt": prompt, "completion": completion, "tools": TOOLS}))
    assert trained_on(made) == spoken(*expected)


def test_every_format_trains_on_the_same(tmp_path: Path) -> None:
    chat = {"messages": CHAT[:2] + CHAT[4:]}
    as_text = {"messages": json.dumps(CHAT), "tools": json.dumps(TOOLS)}
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, as_text)
        writer.writeheader()
        writer.writerow(as_text)
    objects = json.loads(json.dumps(CHAT))
    objects[2]["tool_calls"][0]["function"]["arguments"] = {"a": 1}
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"messages": objects, "tools": TOOLS}]), tmp_path / "a.parquet"
    )
    datasets.Dataset.from_list([{"messages": objects, "tools": json.dumps(TOOLS)}]).save_to_disk(str(tmp_path / "set"))
    expected = read(write(tmp_path / "a.jsonl", as_text))[0]
    for name in ("a.csv", "a.parquet", "set"):
        (made,) = read(tmp_path / name)
        assert trained_on(made) == trained_on(expected) == spoken(LOOK, DONE)
        assert made.sequences[0].tools == expected.sequences[0].tools
    both = datasets.DatasetDict(
        {name: datasets.Dataset.from_list([chat] * n) for name, n in (("test", 1), ("train", 2))}
    )
    both.save_to_disk(str(tmp_path / "both"))
    assert [trained_on(made) for made in read(tmp_path / "both")] == [spoken(DONE)] * 2, "only the split train"


GOOD = {"prompt": "1 + 1?", "completion": "Two."}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"prompt": "x", "completion": None}, "'messages', 'completion' are missing or null"),
        ({"prompt": "x", "completion": ""}, "the assistant says nothing in it"),
        ({"prompt": "", "completion": "x"}, "the column 'prompt': it must be text or a list of messages, not ''"),
        ({"prompt": "x", "completion": 3}, "the column 'completion': it must be text or a list of messages, not 3"),
        ({"messages": CHAT[:2]}, "the assistant says nothing in it"),
        ({"messages": CHAT[4:]}, "it begins with the assistant"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "the column 'messages': message 1: its role is 'bot'"),
        ({**GOOD, "tools": "add"}, "the column 'tools': it must be a list of tools"),
    ],
)
def test_a_wrong_row_is_one_sentence_with_file_and_line(tmp_path: Path, row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=rf"^sft\.demonstrations\.data: .*a\.jsonl, line 2: {sentence}.*\.$") as error:
        read(write(tmp_path / "a.jsonl", GOOD, row))
    assert len(str(error.value).splitlines()) == 1, "another reader says nothing about this file"


def test_other_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"a\.jsonl holds no demonstrations in rows: it has the columns question, answer,"
    ):
        read(write(tmp_path / "a.jsonl", {"question": "x", "answer": "y"}))
    with pytest.raises(
        ConfigError, match=r"(?s)is not a run folder\..*The folder .* was not written by `save_to_disk`"
    ):
        read(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no run folder, recording or data set gone\.jsonl"):
        read(Path("gone.jsonl"))
    splits = {name: datasets.Dataset.from_list([GOOD]) for name in ("a", "b")}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(ConfigError, match=r"set has the splits a, b, and none is 'train'"):
        read(tmp_path / "set")


def test_a_chat_template_that_refuses_a_row_names_it(tmp_path: Path) -> None:
    model = byte_tokenizer()._hf
    model.chat_template = "{{ raise_exception('Roles must alternate.') }}"
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 1: The chat template refuses .*: Roles must alternate\."):
        read_demonstrations([write(tmp_path / "a.jsonl", GOOD)], ChatTokenizer(model))


def test_a_data_set_of_the_hub_has_demonstrations_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub itself is out of reach; the library's answer is a real data set."""
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: datasets.Dataset.from_list([GOOD], split="train"))
    (made,) = read(Path("acme/sums"))
    assert trained_on(made)


SEARCH = '''
def search(query: str, limit: int = 5) -> list[str]:
    """Search the web.

    Args:
        query: What to look for.
        limit: How many results (choices: [5, 10])
    """
    return []

def bare(query):
    return query
'''


def test_tools_may_be_functions_which_describe_themselves_as_in_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.py").write_text(SEARCH)
    talk = {"messages": CHAT[:2] + CHAT[4:]}
    own = write(tmp_path / "own.jsonl", {**talk, "tools": ["./tools.py:search", *TOOLS]}, {**talk, "tools": []})
    of_section = write(tmp_path / "section.jsonl", talk, {**talk, "tools": TOOLS})
    parameters = {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "limit": {"type": "integer", "enum": [5, 10], "description": "How many results"},
        },
        "required": ["query"],
    }
    search, add = ToolSpec("search", "Search the web.", parameters), ToolSpec("add", "Adds.", SCHEMA)
    assert [t.sequences[0].tools for t in read(own)] == [(search, add), ()]
    made = read_demonstrations([of_section], byte_tokenizer(), tools=("./tools.py:search",))
    assert [t.sequences[0].tools for t in made] == [(search,), (add,)]


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [
        ("./tools.py:bare", r"no tool can be made of bare of .*it has no docstring\. It needs"),
        ("./tools.py:serch", r"Did you mean 'search'\?"),
        ("./nowhere.py:search", "there is no file"),
        ("search", "needs a place"),
    ],
)
def test_a_function_that_is_no_tool_is_named_with_its_row(
    tool: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.py").write_text(SEARCH)
    path = write(tmp_path / "a.jsonl", {"messages": CHAT, "tools": [tool]})
    with pytest.raises(ConfigError, match=rf"a\.jsonl, line 1: the column 'tools': tool 1: .*{sentence}"):
        read(path)
