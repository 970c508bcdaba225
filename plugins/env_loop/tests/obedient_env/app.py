"""An OpenEnv environment that does what the action says. It runs in OpenEnv's venv."""

import os
import time
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Order(Action):
    word: str
    times: int = Field(default=1, ge=1)


class Report(Observation):
    heard: list[str] = Field(default_factory=list)
    seed: int | None = None


class Obedient(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self._state = State()
        self.heard: list[str] = []
        self.seed: int | None = None

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Report:
        self.heard, self.seed = [], seed
        return Report(seed=seed)

    def step(self, action: Order) -> Report:
        word, _, value = action.word.partition(" ")
        self.heard += [action.word] * action.times
        if word == "sleep":
            time.sleep(float(value))
        if word == "die":
            os._exit(1)
        if word == "raise":
            raise ValueError("the cup is broken")
        reward = None if word == "silent" else float(action.times)
        return Report(heard=self.heard, seed=self.seed, reward=reward, done=word == "end")

    @property
    def state(self) -> State:
        return self._state


app = create_app(Obedient, Order, Report, env_name="obedient", max_concurrent_envs=2)
