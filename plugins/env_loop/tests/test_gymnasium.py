"""Environments of gymnasium with texts and with numbered actions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gymnasium
import pytest
from env_table import Table, first, source

from ale.errors import ConfigError
from ale.task import HELDOUT

Tables = Callable[..., Table]


async def test_numbered_actions_have_the_rewards_of_a_direct_loop(table: Tables) -> None:
    tasks = first(source("gymnasium:FrozenLake-v1"), 30)
    here, direct = table(max_turns=30), gymnasium.make("FrozenLake-v1")
    won = 0.0
    for task in tasks:
        moves = [(1, 2, 2, 1, 0)[(task.metadata["seed"] + i) % 5] for i in range(30)]
        wanted = [str(direct.reset(seed=task.metadata["seed"])[0])]
        rewards = []
        for move in moves:
            seen, reward, terminated, truncated, _ = direct.step(move)
            wanted.append(str(seen))
            rewards.append(float(reward))
            if terminated or truncated:
                break
        played = await here.play(task, [str(move) for move in moves])
        assert played.failure is None, played.failure
        assert [o.reward for o in played.observations] == rewards
        assert [played.sequences[-1].messages[0].content, *(o.text for o in played.observations)] == wanted
        won += sum(rewards)
    assert won > 0, "some of these moves reach the goal"


async def test_a_text_that_is_no_numbered_action_is_an_illegal_call(table: Tables) -> None:
    (task,) = first(source("gymnasium:FrozenLake-v1", settings={"is_slippery": False}))
    played = await table().play(task, ["left", "4", "-1", "1", "1", "2", "2", "1", "2"])
    assert played.failure is None, played.failure
    errors = [c.error.kind if c.error else None for c in played.chunks]
    assert errors == ["illegal_call"] * 3 + [None] * 6
    assert played.observations[0].text == "Error: The action must be a whole number from 0 to 3, and nothing else."
    assert played.reward is not None
    assert (played.reward.value, played.ended_by) == (1.0, "terminated")


async def test_texts_are_actions_and_observations(
    table: Tables, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(Path(__file__).parent)  # the module before the colon is imported from the current folder
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"word": f"w{i}"}) + "\n" for i in range(20)))
    tasks = source("gymnasium:text_game:Reverse-v0", settings={"length": 7}, rows=rows)
    assert [t.metadata["row"]["word"] for t in first(tasks, 2, HELDOUT)] == ["w9", "w19"]
    here = table()
    for task in first(tasks, 3):
        played = await here.play(task, lambda seen: seen[::-1])
        assert played.sequences[0].messages[0].content == task.metadata["row"]["word"]
        assert played.passed
    (drawn,) = first(source("gymnasium:text_game:Reverse-v0", settings={"length": 7}))
    played = await here.play(drawn, lambda seen: seen[::-1])
    assert (len(played.sequences[0].messages[0].content), played.passed) == (7, True)


async def test_actions_that_a_text_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the actions of Pendulum-v1 are Box\(.*; a model's text can be Text or"):
        async with source("gymnasium:Pendulum-v1"):
            pass
