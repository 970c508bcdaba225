"""Environments over GEM's API: ROCK's `make`, and environments of gem-llm inside a sandbox."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import rock.sdk.envs
from rock.sdk.envhub.client import EnvHubClient, EnvHubError
from rock.sdk.envhub.schema import EnvHubClientConfig
from service_process import Command, Service, serving
from support.index_venvs import python_with
from support.sandbox_providers import must_answer

from ale.config.episode import RolloutConfig, SandboxNeeds
from ale.errors import TaskError
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.no_sandbox import NoSandboxes
from ale.rollout.selection import Option, Selection
from ale.session.session import Sessions
from ale.specs.algorithm import RolloutRequest
from ale.specs.driver import DriverContext
from ale.task import TRAIN
from ale_bash.graded_tasks import graded_tasks
from ale_env_loop import EnvScaffold, EnvTasks, EnvTasksConfig
from ale_rewards.steps_reward import StepsReward
from ale_rock.gem.client import ServedEnvironment
from ale_testing.fake_engines import TOKENIZER, CannedEngine

pytestmark = [pytest.mark.bwrap, pytest.mark.slow]
COUNTING = """
class Counting:
    def __init__(self, to=3):
        self.to = to

    def reset(self, seed=None):
        self.at = seed or 0
        return f"at {self.at}", {"seed": seed}

    def step(self, action):
        if action == "break":
            raise ValueError("broken")
        self.at += int(action)
        return f"at {self.at}", float(action), self.at >= self.to, False, {"to": self.to}
"""
"""An environment without a library, so that nothing has to be installed."""
TEAM = """
class Team:
    possible_agents = ["red", "blue"]

    def reset(self, seed=None):
        self.said = []
        return {"red": "go", "blue": "go"}, {"red": {}, "blue": {}}

    def step(self, actions):
        self.said += actions.values()
        over = len(self.said) > 2
        return (
            {agent: " ".join(self.said) for agent in actions},
            {agent: len(text) for agent, text in actions.items()},
            {agent: over for agent in actions},
            {agent: False for agent in actions},
            {agent: {} for agent in actions},
        )
"""
"""An environment of several agents, as gem's `MultiAgentEnv` has them."""


@pytest.fixture
def make(service: Service, monkeypatch: pytest.MonkeyPatch) -> Any:
    """ROCK's `make`, told where the service is."""
    monkeypatch.setenv("ROCK_BASE_URL", service.url)
    return rock.sdk.envs.make


@pytest.fixture
async def hub(service: Service) -> EnvHubClient:
    """ROCK's client of EnvHub, with the environment `counting` registered."""
    client = EnvHubClient(EnvHubClientConfig(base_url=service.url))
    # The folder of the program that plays it is the first of its path.
    start_up = f"cat > /tmp/.ale-gem/counting_env.py <<'END'\n{COUNTING}END\n"
    extra = {"env": "counting_env:Counting", "settings": {"to": 5}, "start_up": start_up}
    await client.register("counting", "", owner="anna", tags=["toy"], extra_spec=extra)
    return client


async def test_an_environment_is_played_to_its_end_over_the_wire(make: Any, hub: EnvHubClient) -> None:
    env = make("counting")
    assert env.reset(seed=2) == ("at 2", {"seed": 2})
    assert env.step("1") == ("at 3", 1.0, False, False, {"to": 5})
    assert env.step("2") == ("at 5", 2.0, True, False, {"to": 5})
    assert env.reset()[0] == "at 0"
    env.close()


async def test_two_environments_at_once_have_states_of_their_own(make: Any, hub: EnvHubClient) -> None:
    one, two = make("counting"), make("counting")
    one.reset(seed=1)
    two.reset(seed=2)
    assert (one.step("1")[0], two.step("1")[0]) == ("at 2", "at 3")
    one.close()
    assert two.step("1")[0] == "at 4"
    two.close()


async def test_agents_of_one_environment_act_together(make: Any, service: Service, hub: EnvHubClient) -> None:
    start_up = f"cat > /tmp/.ale-gem/team_env.py <<'END'\n{TEAM}END\n"
    extra = {"env": "team_env:Team", "start_up": start_up, "agents": ["blue", "red"]}
    await hub.register("team", "", extra_spec=extra)
    env = make("team")
    assert env.reset()[0] == {"red": "go", "blue": "go"}
    seen, rewards, over, *_ = env.step({"red": "hello", "blue": "no"})
    assert (seen["blue"], rewards, over) == ("hello no", {"red": 5.0, "blue": 2.0}, {"red": False, "blue": False})
    assert env.step({"red": "on"})[2] == {"red": True}
    env.close()
    await hub.register("team", "", extra_spec={**extra, "agents": ["green"]})
    with pytest.raises(Exception, match="its agents are"):
        make("team")
    one = make("team@1")
    one.close()
    with ServedEnvironment("team", service.url, spec={"agents": ["red", "blue"]}) as named:  # instead of EnvHub's
        assert named.reset()[0] == {"red": "go", "blue": "go"}
    for spec, sentence in (({"agents": ["red", "red"]}, "a name of its own"), ({"network": "some"}, "network")):
        with pytest.raises(TaskError, match=sentence):
            ServedEnvironment("team", service.url, spec=spec)


async def test_a_task_of_ale_is_played_and_scored(make: Any, service: Service) -> None:
    env = make("ale:bash/graded/0")
    task = next(iter(graded_tasks()))
    assert task.instruction in env.reset()[0]
    env.step(task.solution)
    *_, reward, terminated, _, info = env.step("finish")
    assert (reward, terminated, info["passed"]) == (1.0, True, True)
    ids = {each["id"]: each["labels"] for each in service.get("/apis/ale/v1/sandboxes").json()["sandboxes"]}
    assert ids[env._sandbox_id]["task"] == task.id
    env.close()


async def test_agents_in_separate_sandboxes_end_together(make: Any, service: Service, hub: EnvHubClient) -> None:
    extra = {"env": "ale:bash/graded/0", "agents": ["red", "blue"], "sandboxes": "separate"}
    await hub.register("pair", "", extra_spec=extra)
    made = service.post("/apis/v1/envs/gem/make", {"env_id": "pair"}).json()
    both = set(made["sandboxes"].values())
    live = {each["id"] for each in service.get("/apis/ale/v1/sandboxes").json()["sandboxes"]}
    assert (set(made["sandboxes"]), made["sandbox_id"] in both, both <= live) == ({"red", "blue"}, True, True)
    of_both = {"sandbox_id": made["sandbox_id"]}
    assert set(service.post("/apis/v1/envs/gem/reset", of_both).json()["observation"]) == {"red", "blue"}
    acted = {**of_both, "action": {"red": "finish"}}
    assert service.post("/apis/v1/envs/gem/step", acted).json()["terminated"] == {"red": True}
    assert service.post("/apis/v1/envs/gem/close", of_both).json() == of_both
    live = {each["id"] for each in service.get("/apis/ale/v1/sandboxes").json()["sandboxes"]}
    assert not both & live


async def test_a_run_of_ale_plays_an_environment_of_the_service(service: Service, hub: EnvHubClient) -> None:
    settings = {"name": "counting", "url": service.url}
    tasks = EnvTasks(EnvTasksConfig(env="ale_rock.gem.client:ServedEnvironment", settings=settings), DriverContext())
    scaffold = EnvScaffold(EnvScaffold.Config(), DriverContext())
    reward = StepsReward(StepsReward.Config(), DriverContext())
    episodes = Episodes(
        Selection("sandbox", [Option("none", NoSandboxes())]),
        Selection("scaffold", [Option("env", scaffold)]),
        Selection("reward", [Option("steps", reward)]),
        Sessions(TOKENIZER, CannedEngine(["2"]), Hooks()),
        Hooks(),
        RolloutConfig(max_tokens=200, max_context=10_000),
        SandboxNeeds(),
        {},
    )
    async with scaffold, tasks:
        task = next(iter(tasks.tasks(TRAIN)))
        played = await episodes.run(RolloutRequest(task, "g", 1), StageInfo("rl", 1, TRAIN, 1.0))
    assert played.failure is None, played.failure
    assert (played.ended_by, played.reward.by_chunk) == ("terminated", (2.0, 2.0, 2.0))


async def test_an_environment_that_fails_says_where(make: Any, hub: EnvHubClient) -> None:
    env = make("counting")
    env.reset(seed=0)
    with pytest.raises(Exception, match="ValueError: broken"):
        env.step("break")
    assert env.step("1")[0] == "at 1"
    env.close()


async def test_what_cannot_be_made_is_refused_and_leaves_no_sandbox(make: Any, service: Service) -> None:
    before = service.get("/apis/ale/v1/sandboxes").json()["sandboxes"]
    with pytest.raises(Exception, match=r"422.*no-such-environment"):
        make("no-such-environment-v0")
    assert service.get("/apis/ale/v1/sandboxes").json()["sandboxes"] == before


async def test_the_environments_of_a_sandbox_are_listed(service: Service, hub: EnvHubClient) -> None:
    base = "/apis/v1/envs/gem"
    made = service.post(f"{base}/make", {"env_id": "counting"}).json()
    assert service.post(f"{base}/list", made).json() == {"env_id": ["counting_env:Counting"]}
    assert service.post(f"{base}/close", made).json() == {"sandbox_id": made["sandbox_id"]}
    gone = service.post(f"{base}/step", {**made, "action": "1"})
    assert gone.status_code >= 400
    assert made["sandbox_id"] in gone.json()["detail"]
    asked = {"image": "any", "memory": "256m", "cpus": 0.5}
    other = service.post("/apis/envs/sandbox/v1/start_async", asked).json()["result"]
    plain = service.post(f"{base}/step", {"sandbox_id": other["sandbox_id"], "action": "1"})
    assert (plain.status_code, "plays no environment" in plain.json()["detail"]) == (422, True)


async def test_environments_are_registered_found_and_deleted(service: Service, hub: EnvHubClient) -> None:
    await hub.register("acme/maze", "acme/maze:3", owner="bert", description="A maze.", tags=["toy", "grid"])
    found = await hub.get_env("acme/maze")
    assert (found.image, found.owner, found.tags, found.extra_spec) == ("acme/maze:3", "bert", ["toy", "grid"], None)
    assert found.create_at
    changed = await hub.register("acme/maze", "acme/maze:4", owner="bert", tags=["toy"])
    assert (changed.image, changed.create_at) == ("acme/maze:4", found.create_at)
    assert {each.env_name for each in await hub.list_envs()} >= {"acme/maze", "counting"}
    assert [each.env_name for each in await hub.list_envs(owner="bert")] == ["acme/maze"]
    assert [each.env_name for each in await hub.list_envs(tags=["toy", "grid"])] == []
    assert await hub.delete_env("acme/maze") is True
    assert await hub.delete_env("acme/maze") is False
    with pytest.raises(EnvHubError, match="404"):
        await hub.get_env("acme/maze")
    with pytest.raises(EnvHubError, match="422"):
        await hub.register("bad", "image", extra_spec={"network": "everything"})
    assert await hub.health_check() == {"status": "ok"}


DIRECT = """
import json, sys
import gem, gem.envs
name, seeds, actions = json.load(sys.stdin)
env = gem.make(name)
played = []
for seed in seeds:
    played.append([env.reset(seed=seed)[0]])
    for action in actions:
        played[-1].append(env.step(action)[:4])
print(json.dumps(played))
"""
SERVED = f"""
import site
site.addsitedir({sysconfig.get_path("purelib")!r})
import json, sys
import gem
from gem.wrappers.episode_tracking_wrapper import EpisodeTrackingWrapper
from ale_rock.gem.client import register
url, name, seed, actions = json.load(sys.stdin)
register(name, url=url)
env = gem.make_vec([name, name], wrappers=[EpisodeTrackingWrapper])
seen = [env.reset(seed=[seed, seed])[0][0]]
for action in actions:
    observations, rewards, terminated, truncated, _ = env.step([action, action])
    seen.append([observations[1], float(rewards[0]), bool(terminated[1]), bool(truncated[0])])
    if terminated.any() or truncated.any():
        seen[-1][0] = None  # it has begun the next episode
        break
for each in env.envs:
    each.close()
print(json.dumps(seen))
"""
"""The same by gem's own `make_vec` and a wrapper of gem, with two environments of the service."""


def answer_of(python: Path, program: str, asked: object) -> Any:
    """What a program prints, in its last line."""
    done = subprocess.run([python, "-c", program], input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.network
def test_gems_own_game_is_the_same_as_in_its_own_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker runs in the library's venv, which its sandboxes see. The same episodes are played without us."""
    must_answer("local")
    python = python_with("gem-llm==0.1.0", "skyrl-gym==0.4.0")  # the venv that the tests of env_loop have, too
    name, actions = "game:GuessTheNumber-v0-easy", [f"\\boxed{{{guess}}}" for guess in (5, 3, 8, 1)]
    with serving(tmp_path, "--worker", "none") as service:
        worker = Command(tmp_path, "worker", ["worker", "--admin", service.url], python=python)
        try:
            service.wait_for_worker()
            spec = {"env_name": "guess", "image": "", "extra_spec": {"env": name, "python": str(python)}}
            assert service.post("/env/register", spec).status_code == 200
            monkeypatch.setenv("ROCK_BASE_URL", service.url)
            env = rock.sdk.envs.make("guess")
            played = []
            for seed in range(3):
                played.append([env.reset(seed=seed)[0]])
                for action in actions:
                    played[-1].append([*env.step(action)[:4]])
            env.close()
            assert played == answer_of(python, DIRECT, [name, [0, 1, 2], actions])
            served = answer_of(python, SERVED, [service.url, "guess", 2, actions])
            if served[-1][0] is None:
                played[2][len(served) - 1][0] = None
            assert served == played[2][: len(served)]
        finally:
            worker.stop()
