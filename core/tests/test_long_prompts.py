"""A first prompt that leaves no room for a reply: its episode fails, is the run's end, or loses its beginning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.config.episode import RolloutConfig, SandboxNeeds
from ale.errors import ConfigError
from ale.messages import Message, ToolSpec
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.filters import OVERLONG as REJECTED
from ale.rollout.filters import without_score
from ale.rollout.selection import Option, Selection
from ale.session.long_prompts import shorten_messages
from ale.session.recorder import Recorder
from ale.session.session import Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.algorithm import RolloutRequest
from ale.specs.choice import Overlong
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import Sampling
from ale.specs.reward import Reward
from ale.specs.sandbox import Sandbox
from ale.specs.scaffold import ModelSession, Scaffold
from ale.task import Task
from ale.trajectory import Score, Trajectory
from ale_testing.fake_engines import ScriptedEngine
from ale_testing.fake_sandboxes import MemoryProvider

TOKENIZER = byte_tokenizer()
QUESTION = "What is 6 times 7?"
LONG = Task(id="long", instruction="once upon a time " * 40 + QUESTION)


class Asks(Driver, Scaffold):
    """Asks the task's question, and then whether the model is sure."""

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        history = [Message("system", "Be brief."), Message("user", task.instruction)]
        for _ in range(2):
            history += [(await session.chat(history)).message, Message("user", "Sure?")]
        return "finish"


class Fixed(Driver, Reward):
    """Always content."""

    async def score(self, task: Task, sandbox: Sandbox, trajectory: Trajectory) -> Score:
        return Score(1.0, True)


Play = Callable[..., Any]


@pytest.fixture
def play() -> Play:
    """The function that plays an episode of a task that is too long."""

    async def run(overlong: Overlong, stage: str = "rl", **config: int) -> Trajectory:
        engine, none = ScriptedEngine(), (PluginConfig(), DriverContext())
        engine.texts = ["42", "Yes"]
        episodes = Episodes(
            Selection("sandbox", [Option("memory", MemoryProvider())]),  # type: ignore[list-item]
            Selection("scaffold", [Option("asks", Asks(*none))]),
            Selection("reward", [Option("fixed", Fixed(*none))]),
            Sessions(TOKENIZER, engine, Hooks()),
            Hooks(),
            RolloutConfig(**{"max_tokens": 40, "max_context": 256, **config}),  # type: ignore[arg-type]
            SandboxNeeds(),
            {},
            overlong=overlong,
        )
        return await episodes.run(RolloutRequest(LONG, "g", 1), StageInfo(stage, 0, "train", 1.0))

    return run


async def test_with_drop_the_episode_is_rejected_with_both_numbers(play: Play) -> None:
    done = await play("drop")
    rejection = without_score(done)
    assert rejection is not None
    assert rejection.kind == REJECTED
    assert "tokens > 256 maximum" in rejection.detail


async def test_with_fail_it_is_the_end_of_the_run(play: Play) -> None:
    with pytest.raises(ConfigError, match=r"tasks\.overlong: the task long is too long .* tokens > 256 maximum"):
        await play("fail")


async def test_with_truncate_the_question_loses_its_beginning_in_all_of_the_conversation(play: Play) -> None:
    done = await play("truncate")
    assert done.reward is not None
    (sequence,) = done.sequences
    system, question, *_ = sequence.messages
    assert system.content == "Be brief."
    assert question.content.endswith(QUESTION)
    assert len(question.content) < len(LONG.instruction)
    first = done.chunks[0]
    assert 200 < first.start <= 256 - 40, "as much is kept as leaves room for a reply"
    assert len(done.chunks) == 2


async def test_an_agent_that_first_asks_for_a_title_has_its_tools_in_the_prompt_that_is_cut() -> None:
    engine = ScriptedEngine()
    engine.texts = ["A title", "42", "Yes"]
    opened = Sessions(TOKENIZER, engine, Hooks()).open(
        "s", Sampling(max_tokens=40), max_calls=8, max_context=400, shortens=True
    )
    tools, history = (ToolSpec("count", "It counts."),), [Message("user", LONG.instruction)]
    await opened.chat(history)
    history.insert(0, Message("system", "Be careful. " * 6))
    for said in ("Sure?", "Really?"):
        history += [(await opened.chat(history, tools)).message, Message("user", said)]
    title, talk = opened.recorder.sequences
    assert len(title.token_ids) < 400
    assert len(talk.token_ids) < 400
    assert talk.messages[1].content.endswith(QUESTION)
    assert len(talk.messages[1].content) < len(title.messages[0].content)


@pytest.mark.parametrize("most", [60, 100, 1000])
@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.text(max_size=200), min_size=1, max_size=4), system=st.text(max_size=10))
def test_shortened_messages_fit_and_keep_their_ends(most: int, texts: list[str], system: str) -> None:
    def count(messages: tuple[Message, ...]) -> int:
        return len(Recorder(TOKENIZER).prompt(messages).token_ids)

    messages = (Message("system", system), *(Message("user", text) for text in texts))
    shown = shorten_messages(messages, TOKENIZER, most, count)
    least = count((messages[0], *(Message("user", "") for _ in texts)))
    assert count(shown) <= max(most, least)
    assert (shown == messages) == (count(messages) <= most)
    assert shown[0] == messages[0]
    assert all(old.content.endswith(new.content) for old, new in zip(messages, shown, strict=True))
