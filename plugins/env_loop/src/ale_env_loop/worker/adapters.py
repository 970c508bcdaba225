"""Environments of several libraries behind one interface. An adapter imports its library when it is made.

`reset` and `step` return a dict: `messages` (what the model is shown: a list of `{"role", "content"}`), `reward` (a
number), `terminated` and `truncated`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any


class IllegalAction(Exception):
    """The text cannot be made an action of this environment; the message gives the model the reason."""


class Adapter:
    """One environment."""

    has_expert = False
    env: Any = None

    def reset(self, seed: int, row: dict[str, Any] | None) -> dict[str, Any]:
        """Begin an episode."""
        raise NotImplementedError

    def step(self, action: str) -> dict[str, Any]:
        """Carry out an action."""
        raise NotImplementedError

    def expert(self, rng: random.Random) -> str:
        """Return what an expert answers now."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the environment, if it can be closed."""
        if callable(getattr(self.env, "close", None)):
            self.env.close()


class OwnClass(Adapter):
    """A class of the user's (or a function that makes an object): `reset(seed)` and `step(action)`."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.env = load_object(name)(**settings)
        for method in ("reset", "step"):
            if not callable(getattr(self.env, method, None)):
                raise TypeError(f"the environment {name} has no method '{method}'")
        self.by_keyword = not takes(self.env.reset, 0) and takes(self.env.reset, seed=0)
        if not (self.by_keyword or takes(self.env.reset, 0) or takes(self.env.reset, 0, {})):
            raise TypeError(f"the method 'reset' of the environment {name} must take a seed: reset(seed)")
        if not takes(self.env.step, ""):
            raise TypeError(f"the method 'step' of the environment {name} must take an action: step(action)")
        self.has_expert = callable(getattr(self.env, "expert", None))

    def reset(self, seed: int, row: dict[str, Any] | None) -> dict[str, Any]:
        seed_globals(seed)
        if self.by_keyword:  # as gymnasium's environments are written: reset(*, seed=None, options=None)
            return shown(first_of(self.env.reset(seed=seed) if row is None else self.env.reset(seed=seed, options=row)))
        return shown(first_of(self.env.reset(seed) if row is None else self.env.reset(seed, row)))

    def step(self, action: str) -> dict[str, Any]:
        return outcome(self.env.step(action))

    def expert(self, rng: random.Random) -> str:
        text = self.env.expert(rng)
        if not isinstance(text, str):
            raise TypeError(f"expert() must return the text of an answer, not {text!r:.100}")
        return text


def takes(method: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
    """Return whether a method can be called with these arguments; True if its signature is not known."""
    try:
        inspect.signature(method).bind(*arguments, **named)
    except TypeError:
        return False
    except ValueError:  # written in C
        return True
    return True


class Gymnasium(Adapter):
    """An environment of gymnasium. Actions are texts, or whole numbers where its actions are `Discrete`."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        gymnasium = importlib.import_module("gymnasium")
        self.env = gymnasium.make(name, **settings)
        self.space = self.env.action_space
        self.sort = type(self.space).__name__
        if self.sort not in ("Text", "Discrete"):
            raise TypeError(f"the actions of {name} are {self.space}; a model's text can be Text or Discrete ones")

    def reset(self, seed: int, row: dict[str, Any] | None) -> dict[str, Any]:
        seed_globals(seed)
        return shown(first_of(self.env.reset(seed=seed, options=row)))

    def step(self, action: str) -> dict[str, Any]:
        return outcome(self.env.step(action if self.sort == "Text" else self._number(action)))

    def _number(self, action: str) -> int:
        first = int(self.space.start)
        last = first + int(self.space.n) - 1
        try:
            number = int(action)
        except ValueError:
            number = first - 1
        if not first <= number <= last:
            raise IllegalAction(f"The action must be a whole number from {first} to {last}, and nothing else.")
        return number


class Gem(Adapter):
    """An environment of gem (`gem-llm`)."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        gem = importlib.import_module("gem")
        importlib.import_module("gem.envs")
        self.env = gem.make(name, **settings)

    def reset(self, seed: int, row: dict[str, Any] | None) -> dict[str, Any]:
        refuse_row(row, "gem")
        seed_globals(seed)
        return shown(first_of(self.env.reset(seed=seed)))

    def step(self, action: str) -> dict[str, Any]:
        return outcome(self.env.step(action))


class SkyRL(Adapter):
    """An environment of skyrl-gym. Each episode is made from its row: `prompt` and what the environment asks for."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.library = importlib.import_module("skyrl_gym")
        self.library.spec(name)  # an unknown name is an error now, not in the first episode
        self.name, self.settings = name, settings

    def reset(self, seed: int, row: dict[str, Any] | None) -> dict[str, Any]:
        if row is None or "prompt" not in row:
            raise ValueError("an environment of skyrl-gym takes its episodes from rows, each with a 'prompt'")
        seed_globals(seed)
        self.close()
        prompt = row["prompt"]
        extras = {key: value for key, value in row.items() if key != "prompt"}
        extras.setdefault("extra_info", {})
        self.env = self.library.make(self.name, env_config=self.settings, extras=extras)
        messages, _ = self.env.init([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)
        return shown(messages)

    def step(self, action: str) -> dict[str, Any]:
        made = self.env.step(action)
        return outcome((made["observations"], made["reward"], bool(made["done"])))


ADAPTERS: dict[str, Callable[[str, dict[str, Any]], Adapter]] = {
    "class": OwnClass,
    "gymnasium": Gymnasium,
    "gem": Gem,
    "skyrl": SkyRL,
}


def find_adapter(kind: str, name: str, settings: dict[str, Any]) -> Adapter:
    """Import an environment and make it."""
    return ADAPTERS[kind](name, settings)


def load_object(name: str) -> Any:
    """Return what `path/to/file.py:Name` or `package.module:Name` names."""
    where, _, attribute = name.rpartition(":")
    if where.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(where)))  # so that the file can import its neighbours
        spec = importlib.util.spec_from_file_location(os.path.basename(where)[:-3], where)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    return getattr(module, attribute)


def seed_globals(seed: int) -> None:
    """Seed the random numbers that belong to this process, so that an environment that uses them can be replayed."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


def refuse_row(row: dict[str, Any] | None, library: str) -> None:
    """Raise if an environment that takes nothing but a seed is given a row."""
    if row is not None:
        raise ValueError(f"an environment of {library} takes no rows; leave out 'rows'")


def first_of(answer: Any) -> Any:
    """Return the observation of `reset`, which may come with an info."""
    return answer[0] if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict) else answer


def shown(observation: Any) -> dict[str, Any]:
    """Return the answer of `reset`."""
    return {"messages": as_messages(observation), "reward": 0.0, "terminated": False, "truncated": False}


def outcome(answer: Any) -> dict[str, Any]:
    """Return the answer of `step`, which is `(observation, reward, done)` or gymnasium's five values."""
    sizes = {3: "(observation, reward, done)", 5: "(observation, reward, terminated, truncated, info)"}
    if not isinstance(answer, tuple) or len(answer) not in sizes:
        raise TypeError(f"step() must return {' or '.join(sizes.values())}, not {answer!r:.100}")
    observation, reward, terminated = answer[:3]
    return {
        "messages": as_messages(observation),
        "reward": float(reward),
        "terminated": bool(terminated),
        "truncated": bool(answer[3]) if len(answer) == 5 else False,
    }


def as_messages(observation: Any) -> list[dict[str, str]]:
    """Return an observation as messages: a text is one of the user's; messages stay as they are."""
    if isinstance(observation, list) and all(
        isinstance(m, dict) and {"role", "content"} <= set(m) for m in observation
    ):
        return [{"role": str(m["role"]), "content": str(m["content"])} for m in observation]
    return [{"role": "user", "content": as_text(observation)}]


def as_text(observation: Any) -> str:
    """Return an observation as text: a text as it is, anything else as JSON."""
    if isinstance(observation, str):
        return observation
    if inspect.isawaitable(observation):
        raise TypeError("its methods must be plain functions (def), not coroutines")
    return json.dumps(observation, default=plain_value, ensure_ascii=False)


def plain_value(value: Any) -> Any:
    """Return an array or a number of numpy as Python's own; anything else as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
