"""The conversation, with replies of a list and functions from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ale.errors import ConfigError, PluginError, SandboxError
from ale.messages import Message
from ale.registry.drivers import load_plugin
from ale.session.session import RecordedSession
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.task import Task
from ale_chat import Chat
from ale_testing.fake_engines import session
from ale_testing.fake_sandboxes import FolderSandbox

TASK = Task(id="t", instruction="Guess it.", metadata={"answer": "42", "hint": "small"})
FUNCTIONS = '''
from __future__ import annotations
import asyncio
from typing import Literal

def opponent(messages, completion, answer, turn, state, hint="none"):
    state["seen"] = [*state.get("seen", []), completion]
    if completion == answer:
        return None, 1.0
    return f"{turn}: no, {hint}, {len(messages)} messages, {len(state['seen'])} seen", -0.25

def quiet(completion):
    return None

async def polite(completion, **kwargs):
    return "Go on."

def wrong(completion):
    return 3

def nan(completion):
    return "on", float("nan")

def crash(completion):
    raise KeyError("x")

def needs_more(completion, column_that_is_not_there):
    return None

def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Carefully.

    Args:
        a: The first
            number.
        b (int): The second number.
    """
    return a + b

async def look(where: Literal["up", "down"], state: dict) -> dict:
    state["looked"] = where
    return {"seen": where, "größe": [1]}

def fails(text: str = "") -> str:
    raise RuntimeError("out of ink")

async def slow() -> None:
    await asyncio.sleep(60)

def long() -> str:
    return "x" * 5000 + "\\ud800"

async def run(command: str, sandbox) -> str:
    return (await sandbox.exec(command)).output

def blocking(sandbox):
    return 1

class Odd: ...

def odd(what: Odd):
    return 1
'''


@pytest.fixture
def at(tmp_path: Path) -> str:
    """The file of the functions."""
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    return str(path)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


async def play(*replies: str, task: Task = TASK, **config: Any) -> tuple[str, RecordedSession]:
    async with session(replies) as opened, FolderSandbox() as sandbox:
        scaffold = Chat(Chat.Config.model_validate(config), DriverContext())
        return await scaffold.run(task, sandbox, opened), opened


def talk(opened: RecordedSession) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in opened.recorder.sequences[-1].messages]


async def test_one_turn_sends_the_instruction_and_takes_the_reply() -> None:
    ended, opened = await play("It is 7.", system="Be short.")
    assert ended == "answer"
    assert talk(opened) == [("system", "Be short."), ("user", "Guess it."), ("assistant", "It is 7.")]
    assert opened.calls == 1
    assert not opened.observations


async def test_the_tasks_own_messages_come_first_and_its_system_message_wins() -> None:
    before = (Message("system", "Mine."), Message("user", "1+1?"), Message("assistant", "2"))
    _, opened = await play("4", task=TASK.model_copy(update={"messages": before}), system="Not mine.")
    assert [role for role, _ in talk(opened)] == ["system", "user", "assistant", "user", "assistant"]
    assert talk(opened)[0] == ("system", "Mine.")


async def test_a_reply_that_looks_like_a_tool_call_is_text_where_there_are_no_tools() -> None:
    ended, opened = await play(call("shell", "{}"))
    assert ended == "answer"
    assert opened.recorder.chunks[0].error is None


async def test_a_fixed_reply_goes_on_until_the_turns_are_used_up_or_a_rule_stops_it() -> None:
    ended, opened = await play("1", "2", "3", "4", reply="Try again.", max_turns=3)
    assert (ended, opened.calls) == ("max_turns", 3)
    assert talk(opened)[2] == ("user", "Try again.")
    ended, opened = await play("1", "The answer: 12", "3", reply="Try again.", stop_when=["stop", "/answer: \\d+$/"])
    assert (ended, opened.calls) == ("stop", 2)
    ended, opened = await play("1", "a.c", reply="Try again.", stop_when=["a.c"], max_turns=5)
    assert (ended, opened.calls) == ("stop", 2)
    ended, opened = await play("abc", reply="Try again.", stop_when=["a.c"], max_turns=2)
    assert ended == "max_turns"


async def test_a_function_answers_each_reply_with_a_reward(at: str) -> None:
    ended, opened = await play("1", "2", "42", user={"path": at, "function": "opponent"})
    assert ended == "finish"
    assert talk(opened)[2] == ("user", "1: no, small, 2 messages, 1 seen")
    assert talk(opened)[4] == ("user", "2: no, small, 4 messages, 2 seen")
    assert [(o.chunk, o.tool, o.reward) for o in opened.observations] == [
        (0, "user", -0.25),
        (1, "user", -0.25),
        (2, "user", 1.0),
    ]


async def test_the_last_reply_gets_its_reward_too(at: str) -> None:
    ended, opened = await play("1", user=f"{at}:opponent", max_turns=1)
    assert ended == "max_turns"
    assert [o.reward for o in opened.observations] == [-0.25]
    ended, opened = await play("go", user=f"{at}:opponent", stop_when=["go"])
    assert ended == "stop"
    assert [o.reward for o in opened.observations] == [-0.25]


async def test_a_user_may_be_async_and_need_not_give_rewards(at: str) -> None:
    ended, opened = await play("1", user=f"{at}:polite", max_turns=2)
    assert (ended, [o.reward for o in opened.observations]) == ("max_turns", [None, None])
    assert (await play("1", user=f"{at}:quiet"))[0] == "finish"


@pytest.mark.parametrize(
    ("function", "error", "sentence"),
    [
        ("wrong", PluginError, "returned 3; it must return the next text"),
        ("nan", PluginError, "it must return the next text"),
        (
            "crash",
            PluginError,
            r"The user of the conversation failed: crash of .* raised KeyError: 'x' \(mine\.py, line",
        ),
        ("needs_more", ConfigError, "takes 'column_that_is_not_there', which nothing provides"),
    ],
)
async def test_a_user_that_fails_is_a_sentence(at: str, function: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        await play("1", user=f"{at}:{function}")


async def test_tools_are_described_by_their_hints_and_docstrings(at: str) -> None:
    _, opened = await play("Done.", tools=[f"{at}:add", f"{at}:look"])
    add, look = opened.recorder.sequences[0].tools
    assert (add.name, add.description) == ("add", "Add two numbers.\n\nCarefully.")
    assert add.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "The first number."},
            "b": {"type": "integer", "description": "The second number.", "default": 1},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    assert look.parameters["properties"] == {"where": {"type": "string", "enum": ["up", "down"]}}


async def test_tool_calls_are_run_and_recorded(at: str) -> None:
    replies = (call("add", '{"a": 2}'), call("look", '{"where": "up"}'), "Three.")
    ended, opened = await play(*replies, tools=[f"{at}:add", f"{at}:look"])
    assert ended == "answer"
    assert [o.text for o in opened.observations] == ["3", '{"seen": "up", "größe": [1]}']
    assert opened.observations[0].arguments == {"a": 2}
    assert [chunk.error for chunk in opened.recorder.chunks] == [None] * 3
    assert talk(opened)[2] == ("tool", "3")


@pytest.mark.parametrize(
    ("reply", "kind", "sentence"),
    [
        (call("sub", "{}"), "illegal_call", "There is no tool 'sub'; the tools are add, fails, slow, long."),
        (call("add", "{}"), "illegal_call", "The call does not fit add: 'a' is missing."),
        (call("add", '{"a": "x"}'), "illegal_call", "The call does not fit add: 'a' is 'x': input should be a valid"),
        (call("add", '{"a": 1, "c": 2}'), "illegal_call", "it takes no 'c', it takes a, b"),
        (call("fails", "{}"), "execution_failed", "Error: RuntimeError: out of ink."),
        (call("slow", "{}"), "execution_failed", "Error: it did not end within 0.2 s."),
        (call("long", "{}"), None, "[4991 characters cut off]"),
    ],
)
async def test_a_call_that_goes_wrong_is_an_answer_and_no_crash(
    at: str, reply: str, kind: str | None, sentence: str
) -> None:
    tools = [f"{at}:{name}" for name in ("add", "fails", "slow", "long")]
    limit_s = 0.2 if "slow" in reply else 60  # a busy machine may take longer for the others, too
    ended, opened = await play(
        reply, "Done.", tools=tools, tool_timeout_s=limit_s, max_output_chars=10 if kind is None else 999
    )
    assert ended == "answer"
    assert sentence in opened.observations[0].text
    error = opened.recorder.chunks[0].error
    assert (error.kind if error else None) == kind


async def test_an_unreadable_call_is_answered_with_a_sentence(at: str) -> None:
    ended, opened = await play("<tool_call>\n{add}\n</tool_call>", "Done.", tools=[f"{at}:add"])
    assert ended == "answer"
    assert talk(opened)[2][1].startswith("Error: ")
    assert opened.recorder.chunks[0].error is not None


async def test_a_tool_may_use_the_sandbox_and_a_lost_sandbox_is_no_answer(at: str) -> None:
    _, opened = await play(call("run", '{"command": "echo hi"}'), "Done.", tools=[f"{at}:run"])
    assert opened.observations[0].text == "hi\n"
    scaffold = Chat(Chat.Config.model_validate({"tools": [f"{at}:run"]}), DriverContext())
    async with session([call("run", '{"command": "echo hi"}')]) as opened, FolderSandbox() as sandbox:
        sandbox.die()
        with pytest.raises(SandboxError):
            await scaffold.run(TASK, sandbox, opened)


def test_a_sandbox_is_used_only_where_a_function_names_it(at: str) -> None:
    for config, used in (({}, False), ({"tools": [f"{at}:add"]}, False), ({"tools": [f"{at}:run"]}, True)):
        assert Chat.uses_sandbox(Chat.Config.model_validate(config)) is used


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"reply": "a", "user": "{at}:quiet"}, "give either 'reply' or 'user', not both"),
        ({"reply": "a", "max_turns": 1}, "the model never sees an answer of 'reply'"),
        ({"tools": ["{at}:add"], "max_turns": 1}, "the model never sees an answer of 'tools'"),
        ({"tools": ["{at}:add", "{at}:add"]}, "two tools have the same name (add, add)"),
        ({"tools": ["{at}:ad"]}, "has no function 'ad'. Did you mean 'add'?"),
        ({"tools": ["{at}:blocking"]}, "it must be written with 'async def'"),
        ({"tools": ["{at}:odd"]}, "no JSON schema can be made of the type hints of odd of"),
        ({"user": "gone.py:x"}, "there is no file gone.py"),
        ({"stop_when": ["/(/"]}, "/(/ is no regular expression"),
        ({"stop_when": [""]}, "an empty text is in every reply"),
        ({"turns": 3}, "there is no such key"),
    ],
)
def test_wrong_settings_are_sentences(at: str, settings: dict[str, Any], sentence: str) -> None:
    filled = json.loads(json.dumps(settings).replace("{at}", at))
    choice = PluginChoice(use="chat", settings=filled)
    with pytest.raises(ConfigError) as caught:
        load_plugin("scaffold", choice, "scaffold")
    assert sentence in str(caught.value)
