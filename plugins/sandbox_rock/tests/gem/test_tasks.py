"""Tasks of ALE as environments, in sandboxes of this machine and without a service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.sandbox_providers import must_answer

from ale.errors import ConfigError, TaskError
from ale.specs.sandbox import SandboxSpec
from ale_rock.envhub.models import EnvironmentPlan
from ale_rock.gem.in_process import SandboxedEnvironments
from ale_rock.gem.task_sources import TaskSources

pytestmark = pytest.mark.bwrap
TASK = "ale:bash/heldout/0"


@pytest.fixture(scope="module")
def here() -> Iterator[SandboxedEnvironments]:
    """Environments in local sandboxes."""
    must_answer("local")
    with SandboxedEnvironments("local") as environments:
        yield environments


async def solution_of(env_id: str, seed: int = 0) -> str:
    """What solves a task of the source `bash`."""
    task = await TaskSources({"bash": {}}).find(env_id, seed)
    assert task.solution is not None
    return task.solution


async def test_a_task_is_played_to_its_end_and_scored_by_its_tests(here: SandboxedEnvironments) -> None:
    solution = await solution_of(TASK)
    with here.make(TASK) as env:
        shown, info = env.reset()
        assert info["task"].endswith("-heldout-0")
        assert shown
        assert env.step("echo out; echo wrong >&2; exit 3")[:2] == ("out\nwrong\n\n(exit code 3)", 0.0)
        assert env.step(f"I run this:\n```bash\n{solution}\n```")[1:4] == (0.0, False, False)
        *_, reward, terminated, truncated, info = env.step("finish")
        assert (reward, terminated, truncated, info["passed"]) == (1.0, True, False, True)
        with pytest.raises(TaskError, match="reset it first"):
            env.step("ls")
        env.reset()  # in a sandbox where nothing is solved
        assert env.step("finish")[1:4] == (0.0, True, False)
        env.reset()
        here.environments._tasks.forget(str(env.sandbox_id))  # as a restart of the service does
        with pytest.raises(TaskError, match="reset it first"):
            env.step("ls")
        env.reset()
        env.step(solution)
        assert env.step("finish")[1] == 1.0


async def test_a_seed_chooses_a_task_and_gives_it_again(here: SandboxedEnvironments) -> None:
    with here.make("ale:bash") as env:
        seen = [env.reset(seed=seed)[1]["task"] for seed in (3, 4, 3)]
        assert seen[0] == seen[2] != seen[1]
        assert env.reset(seed=4)[1]["task"] == seen[1]
        env.step(await solution_of("ale:bash", 4))
        assert env.step("finish")[1] == 1.0
    by_id = f"ale:bash/train/{seen[0]}"
    with here.make(by_id) as env:
        assert env.reset(seed=9)[1]["task"] == seen[0]


async def test_the_last_turn_ends_the_episode_with_a_score(here: SandboxedEnvironments) -> None:
    plan = EnvironmentPlan(TASK, settings={"max_turns": 2, "timeout_s": 5})
    with here.make(plan) as env:
        env.reset()
        assert env.step("sleep 60")[0] == "\n(stopped after 5 s)"
        assert env.step(await solution_of(TASK))[1:4] == (1.0, False, True)


async def test_agents_of_one_sandbox_share_its_files_and_the_reward(here: SandboxedEnvironments) -> None:
    with here.make(EnvironmentPlan(TASK, agents=("red", "blue"))) as env:
        shown, _ = env.reset()
        assert shown["red"] == shown["blue"]
        seen, rewards, *_ = env.step(
            {"red": "echo red > note", "blue": "until [ -s note ]; do sleep 0.05; done; cat note"}
        )
        assert (seen, rewards) == ({"red": "", "blue": "red\n"}, {"red": 0.0, "blue": 0.0})
        _, rewards, terminated, _, _ = env.step({"red": "finish", "blue": await solution_of(TASK)})
        assert (rewards["red"], terminated["red"]) == (0.0, False)
        with pytest.raises(TaskError, match="red has finished"):
            env.step({"red": "ls"})
        _, rewards, terminated, _, _ = env.step({"blue": "finish"})
        assert (rewards, terminated) == ({"red": 1.0, "blue": 1.0}, {"red": True, "blue": True})
        with pytest.raises(TaskError, match="reset it first"):
            env.step({"blue": "ls"})


async def test_agents_in_separate_sandboxes_see_and_earn_what_is_theirs(here: SandboxedEnvironments) -> None:
    plan = EnvironmentPlan("ale:bash", agents=("red", "blue"), separate=True)
    with here.make(plan) as env:
        assert set(env.sandboxes) == {"red", "blue"}
        infos = env.reset()[1]
        task = infos["red"]["task"]
        assert task == infos["blue"]["task"]
        seen, *_ = env.step({"red": "echo red > note", "blue": "sleep 0.3; cat note 2>&-"})
        assert seen["blue"] == "\n(exit code 1)"
        env.step({"blue": await solution_of(f"ale:bash/train/{task}")})
        _, rewards, terminated, _, _ = env.step({"red": "finish", "blue": "finish"})
        assert (rewards, terminated) == ({"red": 0.0, "blue": 1.0}, {"red": True, "blue": True})
        with pytest.raises(TaskError, match="red, blue"):
            env.step("ls")
    with pytest.raises(Exception, match="does not run"):
        env.__class__._call(env, "step", sandbox_id=env.sandboxes["blue"], action="ls")


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (EnvironmentPlan("ale:bash/nowhere"), "splits train, heldout and graded"),
        (EnvironmentPlan("ale:bash/graded/999"), "no task '999' among its 20 first"),
        (EnvironmentPlan("ale:bash/graded/none-such"), "no task 'none-such'"),
        (EnvironmentPlan("ale:none-such"), "no tasks plugin 'none-such'"),
        (EnvironmentPlan(TASK, settings={"turns": 1}), "turns"),
        (EnvironmentPlan(TASK, SandboxSpec(image="no/such:1")), "image"),
    ],
)
def test_what_cannot_be_played_is_a_sentence(here: SandboxedEnvironments, plan: EnvironmentPlan, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        here.make(plan)


async def test_a_service_opens_only_the_sources_that_its_settings_name() -> None:
    with pytest.raises(ConfigError, match="Its setting `task_sources` names bash"):
        await TaskSources({"bash": {}}).find("ale:env/train", 0)
    sources = TaskSources({"short": {"use": "bash", "families": ["write"]}})
    assert (await sources.find("ale:short", 7)).tags == ("write",)
