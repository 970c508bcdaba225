"""gem-llm and skyrl-gym in a venv of their own: the rewards are those of their own loops."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from env_table import Table, first, source
from support.index_venvs import python_with

from ale.errors import ConfigError
from ale.task import Task
from ale_train.starts import ExpertReplay

Tables = Callable[..., Table]
pytestmark = [pytest.mark.network, pytest.mark.slow]
GUESS = "gem:game:GuessTheNumber-v0-easy"
EPISODES = 200


@pytest.fixture(scope="module")
def python() -> str:
    """The Python that has both libraries."""
    return str(python_with("gem-llm==0.1.0", "skyrl-gym==0.4.0"))


def direct_rewards(python: str, kind: str, name: str, episodes: list[dict[str, Any]]) -> list[list[float]]:
    """The rewards of the library's own loop."""
    script = Path(__file__).with_name("direct_loop.py")
    asked = json.dumps({"kind": kind, "name": name, "episodes": episodes})
    done = subprocess.run([python, str(script)], input=asked, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[list[float]] = json.loads(done.stdout)
    return found


async def same_rewards(here: Table, tasks: list[Task], answers: list[list[str]], direct: list[list[float]]) -> None:
    """Play scripted episodes, four at once, and compare their rewards."""
    limit = asyncio.Semaphore(4)

    async def one(task: Task, says: list[str], wanted: list[float]) -> None:
        async with limit:
            played = await here.play(task, says)
        assert played.failure is None, played.failure
        assert [o.reward for o in played.observations] == wanted
        assert played.reward is not None
        assert played.reward.value == pytest.approx(sum(wanted))

    async with asyncio.TaskGroup() as group:
        for task, says, wanted in zip(tasks, answers, direct, strict=True):
            group.create_task(one(task, says, wanted))


def say_guess(rng: random.Random) -> str:
    """A guess, sometimes out of range, now and then none at all."""
    return "I do not know." if rng.random() < 0.1 else f"Perhaps \\boxed{{{rng.randint(1, 12)}}}"


async def test_gems_guessing_game_has_the_rewards_of_its_own_loop(table: Tables, python: str) -> None:
    tasks = first(source(GUESS, python=python), EPISODES)
    answers = [[say_guess(random.Random(f"{task.id}/{i}")) for i in range(5)] for task in tasks]
    episodes = [{"seed": t.metadata["seed"], "answers": says} for t, says in zip(tasks, answers, strict=True)]
    direct = direct_rewards(python, "gem", GUESS.removeprefix("gem:"), episodes)
    assert len({tuple(r) for r in direct}) > 10, "the episodes differ"
    await same_rewards(table(), tasks, answers, direct)


async def test_skyrls_rewards_of_turns_are_those_of_its_own_loop(table: Tables, python: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = [
        {
            "prompt": [{"role": "system", "content": "Reason."}, {"role": "user", "content": f"What is {n} + 5?"}],
            "reward_spec": {"ground_truth": str(n + 5)},
            "extra_info": {"max_turns": rng.randint(1, 4)},
        }
        for n in range(250)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = first(source("skyrl:gsm8k_multi_turn", python=python, rows=tmp_path / "rows.jsonl"), EPISODES)
    answers = []
    for task in tasks:
        right = int(task.metadata["row"]["reward_spec"]["ground_truth"])
        answers.append([rng.choice(["no idea", f"#### {right + 1}", f"so #### {right}"]) for _ in range(4)])
    episodes = [{"row": t.metadata["row"], "answers": says} for t, says in zip(tasks, answers, strict=True)]
    direct = direct_rewards(python, "skyrl", "gsm8k_multi_turn", episodes)
    assert {r for rewards in direct for r in rewards} >= {0.0, 1.0, 0.05}
    here = table()
    await same_rewards(here, tasks, answers, direct)
    played = await here.play(tasks[0], answers[0])
    assert [m.role for m in played.sequences[0].messages[:2]] == ["system", "user"]


async def test_a_rollout_starts_on_an_experts_path_in_gem(table: Tables, python: str) -> None:
    here = table()
    task = first(source(GUESS, python=python), 4)[3]
    low, high = 1, 10

    def halve(seen: str) -> str:
        nonlocal low, high
        guess = (low + high) // 2
        low, high = (guess + 1, high) if f"higher than {guess}" in seen else (low, high)
        low, high = (low, guess - 1) if f"lower than {guess}" in seen else (low, high)
        return f"\\boxed{{{(low + high) // 2}}}"

    expert = await here.play(task, halve)
    assert expert.failure is None, expert.failure
    turns = len(expert.chunks)
    assert turns > 1, "this number is not guessed at once"
    last = str(expert.observations[-1].arguments["action"])
    rolled = await here.roll(task, ExpertReplay(expert, turns - 1), [last])
    assert rolled.failure is None, rolled.failure
    assert [o.reward for o in rolled.observations] == [o.reward for o in expert.observations]


async def test_mistakes_are_sentences_before_the_run(table: Tables, python: str) -> None:
    for env, sentence in {
        "gem:game:Gues-v0": "gem:game:Gues-v0 cannot be loaded: ValueError: Environment game:Gues-v0 not found",
        "skyrl:gsm9k": "The environment skyrl:gsm9k cannot be loaded: ",
    }.items():
        with pytest.raises(ConfigError) as caught:
            async with source(env, python=python):
                pass
        assert sentence in str(caught.value)
    (task,) = first(source("skyrl:gsm8k", python=python))
    played = await table().play(task, ["x"])
    assert played.failure is not None
    assert "takes its episodes from rows, each with a 'prompt'" in played.failure.message
