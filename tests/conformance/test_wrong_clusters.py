"""Deliberately wrong clusters: each breaks one rule of the contract, and the kit says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong import AWAITED_S, Wrong, assert_found

pytestmark = pytest.mark.slow

CLUSTER = """
from ale.errors import AleError
from ale.registry.drivers import open_driver
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes
from ale.specs.cluster import Cluster
from ale.specs.driver import Driver
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
import asyncio, subprocess, sys
class Fixed(Driver, Cluster):
    api_version = ">=1.0,<1.2"
    ranks = None
    def __init__(self, config, context):
        super().__init__(config, context)
        self.stack = AsyncExitStack()
    async def close(self):
        await self.stack.aclose()
    async def start_engine(self, plan):
        return await open_driver(self.stack, "engine", plan.choice, self.context)
    async def place_episodes(self, config, here):
        return here
"""
MADE_ELSEWHERE = (
    CLUSTER
    + """
    async def place_episodes(self, config, here):
        fields = {name: getattr(here.episodes, name) for name in Episodes.__dataclass_fields__}
        return replace(here, episodes=Elsewhere(**fields))
@dataclass(frozen=True)
class Elsewhere(Episodes):
    async def run(self, request, stage):
"""
)

WRONG = {
    "an error of its own": Wrong(
        "cluster",
        CLUSTER
        + """
    async def start_engine(self, plan):
        try:
            return await open_driver(self.stack, "engine", plan.choice, self.context)
        except AleError as error:
            raise RuntimeError("no engine") from error
""",
        "test_an_engine_that_cannot_start_is_refused_and_the_cluster_closes",
        "an engine that is not installed: it must raise AleError, it raised",
    ),
    "observers that hear of no sandbox": Wrong(
        "cluster",
        CLUSTER
        + """
    async def place_episodes(self, config, here):
        return replace(here, episodes=replace(here.episodes, hooks=Hooks()))
""",
        "test_a_run_hears_of_its_episodes_and_sandboxes",
        "they must be told of each sandbox (ale_sandbox_started)",
    ),
    "pools that are lost": Wrong(
        "cluster",
        CLUSTER
        + """
    async def place_episodes(self, config, here):
        return replace(here, pools={})
""",
        "test_a_run_hears_of_its_episodes_and_sandboxes",
        "place_episodes() must return the pools ['local'], not []",
    ),
    "another reward": Wrong(
        "cluster",
        MADE_ELSEWHERE
        + """
        played = await super().run(request, stage)
        return replace(played, reward=replace(played.reward, value=0.5))
""",
        "test_episodes_are_as_those_of_a_run_in_one_process",
        "reward of kit-solved must be that of a run in one process",
    ),
    "a cancelled episode that goes on": Wrong(
        "cluster",
        MADE_ELSEWHERE
        + """
        return await asyncio.shield(asyncio.ensure_future(super().run(request, stage)))
""",
        "test_a_cancelled_episode_leaves_nothing_running_and_others_go_on",
        "what a cancelled episode runs must end with it",
        timeout_s=AWAITED_S,
    ),
    "an end without a trajectory": Wrong(
        "cluster",
        MADE_ELSEWHERE
        + """
        return await asyncio.ensure_future(super().run(request, stage))
""",
        "test_an_episode_that_the_run_ends_comes_back_with_the_reason",
        "an episode that `Episodes.ended` names must return a trajectory",
    ),
    "scoring unasked": Wrong(
        "cluster",
        MADE_ELSEWHERE
        + """
        alone = {name: getattr(self, name) for name in Episodes.__dataclass_fields__ if name != "scoring"}
        return await Episodes(**alone).run(request, stage)
""",
        "test_many_episodes_are_made_at_once_and_the_run_says_when_they_are_scored",
        "`Episodes.scoring` must be held once for each reward that is computed",
    ),
    "weights that are only counted": Wrong(
        "cluster",
        CLUSTER
        + """
    async def start_engine(self, plan):
        engine = await open_driver(self.stack, "engine", plan.choice, self.context)
        async def load_weights(policy):
            engine._version = policy.version
        engine.load_weights = load_weights
        return engine
""",
        "test_newer_weights_are_used_by_the_engine_and_by_episodes",
        "tokens carry the version that sampled them: one of [1], not [0]",
    ),
    "a process that stays": Wrong(
        "cluster",
        CLUSTER
        + """
    async def start(self):
        self.node = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
""",
        "test_a_closed_cluster_leaves_no_process_and_no_folder",
        "close() must end the cluster's processes",
        timeout_s=AWAITED_S,
    ),
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    assert_found(WRONG[what], tmp_path)
