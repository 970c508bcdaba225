"""Episodes of a class of the user's: what the model is shown, what is recorded, how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from env_table import WORLDS, Table, first, source, world

from ale.errors import ConfigError
from ale.task import HELDOUT, Task
from ale.trajectory import Trajectory

Tables = Callable[..., Table]


def rewards(trajectory: Trajectory) -> list[float | None]:
    """The rewards of the steps."""
    return [o.reward for o in trajectory.observations]


async def test_rewards_of_steps_are_recorded_by_chunk_and_summed(table: Tables) -> None:
    (task,) = first(world("Sum"))
    played = await table().play(task, ["1", "0.5", "2"])
    assert played.failure is None, played.failure
    assert rewards(played) == [1.0, 0.5, 2.0]
    assert played.reward is not None
    assert (played.reward.value, played.reward.by_chunk, played.reward.passed) == (3.5, (1.0, 0.5, 2.0), True)
    assert played.ended_by == "terminated"
    assert [o.text for o in played.observations][-1] == "seed 0, sum 3.5"
    assert [m.content for m in played.sequences[-1].messages][:3] == ["seed 0", "1", "seed 0, sum 1"]


async def test_gymnasiums_five_values_and_observations_that_are_no_text(table: Tables) -> None:
    (task,) = first(world("FiveValues"))
    played = await table().play(task, ["a", "b", "c"])
    assert played.ended_by == "truncated"
    assert played.sequences[-1].messages[0].content == '{"left": 3}'
    assert played.observations[1].text == '{"left": 1, "heard": "b"}'


async def test_a_reset_that_takes_the_seed_by_its_name_gets_it(table: Tables) -> None:
    (task,) = first(world("ByKeyword"))
    played = await table().play(task, ["x"])
    assert played.sequences[0].messages[0].content == f"seed {task.metadata['seed']}"


async def test_an_episode_ends_after_its_turns(table: Tables) -> None:
    (task,) = first(world("Sum"))
    played = await table(max_turns=4).play(task, ["0"])
    assert (played.ended_by, len(played.chunks)) == ("max_turns", 4)
    assert played.reward is not None
    assert (played.reward.value, played.reward.passed) == (0.0, False)


async def test_instruction_and_system_message_come_before_the_first_observation(table: Tables) -> None:
    (task,) = first(world("Sum", instruction="Reach three.", system="You add."))
    played = await table().play(task, ["3"])
    assert [(m.role, m.content) for m in played.sequences[0].messages[:2]] == [
        ("system", "You add."),
        ("user", "Reach three.\nseed 0"),
    ]


async def test_the_action_is_what_the_last_match_holds(table: Tables) -> None:
    (task,) = first(world("Sum", action="<act>(.*?)</act>"))
    played = await table().play(task, ["Not <act>1</act>, but <act>3</act>."])
    assert played.observations[0].arguments == {"action": "3"}
    assert rewards(played) == [3.0]


async def test_an_answer_without_an_action_is_an_illegal_call_that_the_environment_never_hears_of(
    table: Tables,
) -> None:
    (task,) = first(world("Sum", action="<act>(.*?)</act>"))
    played = await table().play(task, ["3", "<act>3</act>"])
    assert played.failure is None, played.failure
    assert rewards(played) == [0.0, 3.0]
    assert played.chunks[0].error is not None
    assert played.chunks[0].error.kind == "illegal_call"
    assert played.sequences[-1].messages[2].content.startswith("Error: The answer holds no action; it must match")


async def test_whatever_the_model_says_reaches_the_environment_unchanged(table: Tables) -> None:
    texts = ["", "größe ✓ \U0001f600 \x00", '<tool_call>\n{"name": "shell"}\n</tool_call>', "end"]
    (task,) = first(world("Obedient"))
    played = await table().play(task, texts)
    assert played.failure is None, played.failure
    assert played.observations[-1].text.endswith(f"heard {texts}")
    assert [c.error for c in played.chunks] == [None] * 4


async def test_what_the_environment_prints_is_no_answer(table: Tables) -> None:
    (task,) = first(world("Loud"))
    played = await table().play(task, ["x"])
    assert (played.observations[0].text, rewards(played)) == ("quiet", [1.0])


async def test_random_numbers_of_the_process_are_the_episodes_own(table: Tables) -> None:
    """An environment that ignores its seed draws the same numbers for it, also beside other episodes."""
    tasks = first(world("Dice"), 6)
    here = table(max_turns=5)
    alone = [rewards(await here.play(task, ["x"])) for task in tasks]
    together = await asyncio.gather(*(here.play(task, ["x"]) for task in tasks))
    assert [rewards(t) for t in together] == alone
    assert len({tuple(r) for r in alone}) == 6


async def test_a_process_is_used_again_and_episodes_side_by_side_have_their_own(table: Tables) -> None:
    (task,) = first(world("Obedient"))
    here = table()
    pids = [(await here.play(task, ["end"])).sequences[0].messages[0].content for _ in range(3)]
    assert len(set(pids)) == 1
    many = await asyncio.gather(*(here.play(task, ["sleep 0.2", "end"]) for _ in range(5)))
    assert len({t.sequences[0].messages[0].content for t in many}) == 5
    assert [t.observations[-1].text.partition(" ")[2] for t in many] == ["heard ['sleep 0.2', 'end']"] * 5


async def test_settings_are_the_arguments_of_the_class(table: Tables) -> None:
    (task,) = first(world("Sum", settings={"goal": 1}))
    played = await table().play(task, ["1"])
    assert played.ended_by == "terminated"


async def test_splits_share_no_seed_and_the_same_settings_give_the_same_tasks() -> None:
    tasks = world("Sum", episodes=50, heldout_episodes=20)
    train, held = first(tasks, 50), first(tasks, 20, HELDOUT)
    assert not {t.metadata["seed"] for t in train} & {t.metadata["seed"] for t in held}
    assert train == first(world("Sum", episodes=50), 50)
    assert not {t.metadata["seed"] for t in train} & {t.metadata["seed"] for t in first(world("Sum", seed=1), 50)}
    with pytest.raises(ConfigError, match="not 'test'"):
        tasks.tasks("test")


async def test_a_task_of_another_source_is_a_sentence(table: Tables) -> None:
    played = await table().play(Task(id="q1", instruction="?", metadata={"answer": 4}), ["x"])
    assert played.failure is not None
    assert (played.failure.kind, played.failure.retryable) == ("task", False)
    assert "The task 'q1' is no episode of an environment (env: Field required" in played.failure.message


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"env": "guess"}, "'guess' is no environment; write path/to/file.py:Class, package.module:Class, or a name"),
        ({"env": "gone.py:Guess"}, "there is no file gone.py"),
        ({"env": "gem:"}, "'gem:' names no environment after 'gem:'"),
        ({"env": "openenv:nowhere"}, "nowhere is neither a URL nor a folder with an openenv.yaml"),
        ({"env": "openenv-http:nowhere"}, "must name a server, such as openenv-http:http://127.0.0.1:8000"),
        ({"env": "a:B", "python": "/gone/python"}, "there is no file /gone/python; name the python of a venv"),
        ({"env": "a:B", "action": "("}, "'(' is no regular expression"),
        ({"env": "a:B", "observation": "x"}, "'observation' names a field of OpenEnv's observations"),
        ({"env": "openenv:http://x", "settings": {"a": 1}}, "an OpenEnv server is made without 'settings'"),
        ({"env": "openenv:http://x", "python": __file__}, "the server at a URL runs already; leave out 'python'"),
        ({"env": "a:B", "rows": "gone.jsonl"}, "there is no file gone.jsonl"),
        ({"env": "a:B", "settings": {"x": object()}}, "must be values that JSON can hold"),
    ],
)
def test_a_mistake_in_the_settings_is_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        source(**settings)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (f"{WORLDS}:Nobody", "cannot be loaded: AttributeError"),
        (f"{WORLDS}:Dull", "has no method 'step'"),
        (f"{WORLDS}:Seedless", "the method 'reset' of the environment"),
        (f"{WORLDS}:Still", "must take an action: step(action)"),
        (f"{WORLDS}:Unmakeable", "cannot be loaded: OSError: the board is lost"),
        ("no_such_module:X", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("gymnasium:NoSuchGame-v1", "cannot be loaded: NameNotFound"),
    ],
)
async def test_an_environment_that_cannot_be_made_is_a_sentence_before_the_run(
    table: Tables, env: str, sentence: str
) -> None:
    tasks = source(env)
    with pytest.raises(ConfigError) as caught:
        async with tasks:
            pass
    assert sentence in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        await table().play(first(tasks)[0], ["x"])


async def test_a_python_that_cannot_run_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("no program")
    with pytest.raises(ConfigError, match=r"The Python .* cannot be started: "):
        async with world("Sum", python=str(tmp_path / "python")):
            pass
