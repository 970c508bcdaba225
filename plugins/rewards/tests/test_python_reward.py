"""Reward functions of a user's file, in ALE's form and in the forms of TRL and verifiers."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ale.errors import ConfigError, PluginError, SandboxError, TaskError
from ale.registry.drivers import load_plugin
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.task import Task
from ale.trajectory import Score, Trajectory
from ale_rewards import PythonReward
from ale_testing.fake_sandboxes import FolderSandbox

FUNCTIONS = '''
import asyncio, math
import numpy as np
from ale.errors import SandboxError
from ale.trajectory import Score

def exact(completion, answer):
    return float(completion == answer)

async def patient(completion, answer):
    await asyncio.sleep(0)
    return completion == answer

def short(completion):
    return 1 - len(completion) / 100

def with_parts(completion):
    return {"right": 0.5, "format": 0.25}

def with_reward(completion):
    return {"reward": 0.1, "length": 12}

def by_turn(trajectory):
    return [float(i) for i, _ in enumerate(trajectory.turns)]

def too_many():
    return [1, 2, 3]

def own_score():
    return Score(3.0, False, "mine")

def of_numpy():
    return np.float32(0.5)

def numpy_bool():
    return np.bool_(True)

def numpy_turns(trajectory):
    return np.ones(len(trajectory.turns))

def none():
    return None

def nan():
    return math.nan

def huge():
    return 10**400

def text():
    return "1.0"

def text_in_dict():
    return {"a": "1.0"}

def fails(completion):
    return 1 / 0

async def lost(sandbox):
    raise SandboxError("gone")

async def in_sandbox(sandbox, answer):
    return (await sandbox.exec(f"echo {answer}")).stdout == b"42\\n"

def blocking(sandbox):
    return 1

def endless():
    while True:
        pass

def told(completion, missing_column):
    return 1

def names(**kwargs):
    return {name: 1 for name in kwargs}

def whole(prompt, messages, state, info, task, metadata, question="none"):
    assert prompt == task.instruction and len(messages) == 3, messages
    assert state["turn"] == 1 and state["completion"] == "42" and metadata["answer"] == "42" and info["level"] == 3
    return 1

# In the form of TRL, standard and conversational.
def trl_length(completions, **kwargs):
    """Longer completions get higher rewards."""
    return [float(len(completion)) for completion in completions]

def trl_answers(prompts, completions, answer, **kwargs):
    return [1.0 if a in c else 0.0 for p, c, a in zip(prompts, completions, answer) if p]

def trl_conversational(prompts, completions, **kwargs):
    replies = [completion[0]["content"] for completion in completions]
    return [1.0 if reply == "42" and prompt[-1]["role"] == "user" else 0.0 for prompt, reply in zip(prompts, replies)]

async def trl_async(completions, answer, **kwargs):
    return [float(c == a) for c, a in zip(completions, answer)]

def trl_tokens(prompts, completions, completion_ids, prompt_ids, **kwargs):
    assert len(prompt_ids) == len(completion_ids) == len(completions)
    return [float(bool(ids) and all(isinstance(i, int) for i in ids)) for ids in completion_ids]

def verl(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth and data_source == "sums")

def trl_none(completions, **kwargs):
    return [None for _ in completions]

def trl_wrong(completions, **kwargs):
    return 1.0

# In the form of verifiers.
def vf_exact(completion, answer, state, info, parser=None, **kwargs) -> float:
    text = completion[-1]["content"]
    assert completion[-1]["role"] == "assistant" and state["answer"] == answer
    return 1.0 if text == answer and info["level"] == 3 else 0.0

async def vf_turns(prompt, completion, state) -> float:
    assert prompt[-1]["role"] == "user"
    return float(state["turn"])
'''
TASK = Task(id="q1", instruction="What is 6 * 7?", metadata={"answer": "42", "info": {"level": 3}})
MakeEpisode, MakeTask = Callable[..., Trajectory], Callable[..., Task]
Scored = Callable[..., Awaitable[Score]]


@pytest.fixture
def at(tmp_path: Path) -> Path:
    """The file of the functions."""
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    return path


@pytest.fixture
def score(episode: MakeEpisode) -> Scored:
    """Return the function that scores an episode with these replies by a function of the file."""

    async def run(
        at: Path, function: str, *replies: str, task: Task = TASK, of: Trajectory | None = None, **config: Any
    ) -> Score:
        reward = PythonReward(PythonReward.Config(path=at, function=function, **config), DriverContext())
        async with reward, FolderSandbox() as sandbox:
            return await reward.score(task, sandbox, of or episode(*replies))  # type: ignore[arg-type]

    return run


@pytest.mark.parametrize(
    ("function", "value", "passed", "parts"),
    [
        ("exact", 1.0, True, {}),
        ("patient", 1.0, True, {}),
        ("short", 0.98, False, {}),
        ("with_parts", 0.75, False, {"right": 0.5, "format": 0.25}),
        ("with_reward", 0.1, False, {"reward": 0.1, "length": 12.0}),
        ("own_score", 3.0, False, {}),
        ("of_numpy", 0.5, False, {}),
        ("numpy_bool", 1.0, True, {}),
        ("whole", 1.0, True, {}),
    ],
)
async def test_what_a_function_returns_becomes_a_score(
    at: Path, function: str, value: float, passed: bool, parts: dict[str, float], score: Scored
) -> None:
    found = await score(at, function, "42")
    assert (found.value, found.passed, dict(found.parts), found.by_chunk) == (pytest.approx(value), passed, parts, ())


async def test_pass_at_says_what_is_a_success_but_true_and_false_decide_alone(at: Path, score: Scored) -> None:
    assert (await score(at, "short", "42", pass_at=0.9)).passed
    assert (await score(at, "patient", "42", pass_at=2)).passed
    assert not (await score(at, "patient", "43", pass_at=-1)).passed


async def test_a_list_spreads_over_the_turns_and_side_calls_get_nothing(
    at: Path, episode: MakeEpisode, score: Scored
) -> None:
    found = await score(at, "by_turn", of=episode("a", "b", "c", side_after=0))
    assert found.by_chunk == (0.0, 0.0, 1.0, 2.0)
    assert found.value == 3.0
    assert (await score(at, "numpy_turns", "a", "b")).by_chunk == (1.0, 1.0)


async def test_a_function_sees_the_last_reply_and_an_episode_without_one_has_none(at: Path, score: Scored) -> None:
    assert (await score(at, "exact", "41", "42")).value == 1.0
    assert (await score(at, "exact")).value == 0.0


async def test_a_function_of_verl_gets_the_reply_and_the_answer(at: Path, make_task: MakeTask, score: Scored) -> None:
    task = make_task(answer="42", data_source="sums")
    assert (await score(at, "verl", "42", task=task)).value == 1.0
    assert (await score(at, "verl", "41", task=task)).value == 0.0


async def test_keyword_arguments_get_everything_but_the_sandbox(at: Path, make_task: MakeTask, score: Scored) -> None:
    found = await score(at, "names", "42", task=make_task(level="easy"))
    assert set(found.parts) == {
        *("prompt", "completion", "messages", "task", "trajectory", "state", "info", "metadata"),
        *("prompt_ids", "completion_ids", "solution_str", "reply", "level"),
    }


async def test_several_functions_are_weighted_and_one_that_does_not_apply_is_left_out(
    at: Path, episode: MakeEpisode
) -> None:
    functions = [
        {"path": at, "function": "exact", "weight": 0.7},
        {"path": at, "function": "with_parts", "weight": 0.4, "name": "form"},
        {"path": at, "function": "by_turn", "weight": 0.5},
        {"path": at, "function": "none"},
    ]
    reward = PythonReward(PythonReward.Config.model_validate({"functions": functions}), DriverContext())
    found = await reward.score(TASK, None, episode("41", "42"))  # type: ignore[arg-type]
    assert found.value == pytest.approx(0.7 * 1 + 0.4 * 0.75 + 0.5 * 1)
    assert found.passed
    assert found.parts == {"exact": 1.0, "form": 0.75, "form.right": 0.5, "form.format": 0.25, "by_turn": 1.0}
    assert found.by_chunk == (0.0, 0.5)


async def test_weights_that_miss_one_by_rounding_still_pass(at: Path, episode: MakeEpisode) -> None:
    functions = [{"path": at, "function": "exact", "weight": w, "name": str(w)} for w in (0.7, 0.2, 0.1)]
    reward = PythonReward(PythonReward.Config.model_validate({"functions": functions}), DriverContext())
    found = await reward.score(TASK, None, episode("42"))  # type: ignore[arg-type]
    assert found.passed
    assert math.isclose(found.value, 1.0)


@pytest.mark.parametrize(
    ("function", "form", "value"),
    [
        ("trl_length", "text", 2.0),
        ("trl_answers", "text", 1.0),
        ("trl_tokens", "text", 1.0),
        ("trl_async", "text", 1.0),
        ("trl_conversational", "messages", 1.0),
        ("vf_exact", "messages", 1.0),
        ("vf_turns", "messages", 1.0),
    ],
)
async def test_functions_of_trl_and_verifiers_run_unchanged(
    at: Path, function: str, form: str, value: float, score: Scored
) -> None:
    assert (await score(at, function, "42", completion_as=form)).value == value


async def test_messages_have_the_whole_conversation_from_the_first_reply_on(at: Path, score: Scored) -> None:
    assert (await score(at, "vf_exact", "41", "42", completion_as="messages")).value == 1.0
    assert (await score(at, "vf_turns", "41", "42", completion_as="messages")).value == 2.0


THINKING = """
import re
FORM = re.compile(r"<think>.*?</think>.*", re.DOTALL)
def trl(completions, **kwargs): return [float(FORM.fullmatch(c[0]["content"]) is not None) for c in completions]
def vf(completion): return float(FORM.fullmatch(completion[-1]["content"]) is not None)
def trl_text(completions, **kwargs): return [float(FORM.fullmatch(c) is not None) for c in completions]
def text(completion): return float(FORM.fullmatch(completion) is not None)
def verl(data_source, solution_str, ground_truth, extra_info=None): return float("</think>" in solution_str)
def without(reply, answer): return float(reply == answer)
"""


@pytest.mark.parametrize("thoughts", ["because", ""])
@pytest.mark.parametrize(
    ("function", "form"),
    [
        ("trl", "messages"),
        ("vf", "messages"),
        ("trl_text", "text"),
        ("text", "text"),
        ("verl", "text"),
        ("without", "text"),
    ],
)
async def test_functions_see_the_thoughts_that_the_model_wrote(
    tmp_path: Path, score: Scored, make_task: MakeTask, episode: MakeEpisode, function: str, form: str, thoughts: str
) -> None:
    path, task = tmp_path / "thinking.py", make_task(answer="42", data_source="sums")
    path.write_text(THINKING)
    made = with_thoughts(episode("42"), thoughts)
    found = await score(path, function, task=task, of=made, completion_as=form)
    assert found.value == float(bool(thoughts) or function == "without")


async def test_a_reply_that_was_cut_inside_its_thoughts_does_not_end_them(
    tmp_path: Path, score: Scored, episode: MakeEpisode
) -> None:
    path = tmp_path / "thinking.py"
    path.write_text(THINKING)
    made = with_thoughts(episode(""), "becau")
    cut = replace(made, chunks=(replace(made.chunks[0], finish_reason="length"),))
    assert (await score(path, "text", of=cut)).value == 0.0
    assert (await score(path, "text", of=made)).value == 1.0


def with_thoughts(made: Trajectory, thoughts: str) -> Trajectory:
    """Return an episode whose last reply has these thoughts."""
    *before, last = made.sequences[0].messages
    messages = (*before, replace(last, reasoning=thoughts))
    return replace(made, sequences=(replace(made.sequences[0], messages=messages), *made.sequences[1:]))


@pytest.mark.parametrize(
    ("function", "error", "sentence"),
    [
        ("nan", PluginError, r"nan of .*mine\.py returned nan; a reward must be a finite number"),
        ("huge", PluginError, "a reward must be a finite number"),
        ("text", PluginError, "returned '1.0'; a reward must be a finite number"),
        ("text_in_dict", PluginError, "under 'a', returned '1.0'"),
        ("too_many", PluginError, "returned 3 numbers for an episode of 2 turns"),
        (
            "fails",
            PluginError,
            r"fails of .*mine\.py raised ZeroDivisionError: division by zero \(mine\.py, line \d+\)",
        ),
        ("endless", PluginError, r"was stopped: it did not end within 0\.2 s"),
        ("trl_wrong", PluginError, "must return a list with one number for each completion"),
        ("none", TaskError, "Task q1 has no reward: none of .* returned None for it"),
        ("trl_none", TaskError, "Task q1 has no reward"),
        ("lost", SandboxError, "gone"),
        ("told", ConfigError, "Task q1: told of .* takes 'missing_column', which nothing provides"),
    ],
)
async def test_what_goes_wrong_is_a_sentence_that_names_the_function(
    at: Path, function: str, error: type[Exception], sentence: str, score: Scored
) -> None:
    with pytest.raises(error, match=sentence):
        await score(at, function, "1", "2", timeout_s=0.2 if function == "endless" else 60)


async def test_a_column_that_only_a_later_task_lacks_is_that_tasks_fault(
    at: Path, episode: MakeEpisode, make_task: MakeTask
) -> None:
    reward = PythonReward(PythonReward.Config(path=at, function="exact"), DriverContext())
    assert (await reward.score(TASK, None, episode("42"))).passed  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"takes 'answer', which nothing provides\. Did you mean 'answr'"):
        await reward.score(make_task(answr="42"), None, episode("42"))  # type: ignore[arg-type]


async def test_a_function_may_use_the_sandbox(at: Path, score: Scored) -> None:
    assert (await score(at, "in_sandbox", "x")).passed
    for function, used in (("in_sandbox", True), ("exact", False)):
        assert PythonReward.uses_sandbox(PythonReward.Config(path=at, function=function)) is used


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "give either 'function' (with 'path') or a list 'functions'"),
        ({"path": "{at}"}, "give either 'function'"),
        ({"function": "exact"}, "the function 'exact' needs a place"),
        ({"path": "gone.py", "function": "exact"}, "there is no file gone.py"),
        ({"path": "{at}", "function": "exat"}, "has no function 'exat'. Did you mean 'exact'?"),
        ({"path": "{at}", "function": "blocking"}, "it must be written with 'async def'"),
        ({"path": "{at}", "function": "exact", "functions": [{"function": "{at}:exact"}]}, "give either 'function'"),
        (
            {"functions": [{"function": "{at}:exact"}, {"function": "{at}:exact"}]},
            "several functions are called 'exact'",
        ),
        ({"functions": [{"function": "{at}:exact", "wieght": 2}]}, "Valid here: path, function, weight, name"),
        ({"path": "{at}", "function": "exact", "pas_at": 1}, "Did you mean 'pass_at'"),
    ],
)
def test_wrong_settings_are_sentences(at: Path, settings: dict[str, Any], sentence: str) -> None:
    filled = json.loads(json.dumps(settings).replace("{at}", str(at)))
    with pytest.raises(ConfigError) as caught:
        load_plugin("reward", PluginChoice(use="python", settings=filled), "reward")
    assert sentence in str(caught.value)
