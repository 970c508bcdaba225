"""Environments with GEM's methods in a trainer's own process: `make`, and `register` for gem's own `make`.

The environment runs in a sandbox of a service. What is returned here has `reset`, `step` and `close` as GEM defines
them, so wrappers and `make_vec` of gem-llm take it. Nothing of gem is needed, and nothing but the standard library.
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from ale.errors import ConfigError, SandboxError, TaskError

DEFAULT_URL = "http://127.0.0.1:8080"
PATH = "/apis/v1/envs/gem"
Action = str | dict[str, str]
Observed = tuple[Any, dict[str, Any]]
Stepped = tuple[Any, Any, Any, Any, dict[str, Any]]
_open = build_opener(ProxyHandler({})).open


class GemEnvironment(ABC):
    """An environment in a sandbox. With several agents, actions and all but `info` of a step are by agent, too."""

    def __init__(self, name: str, seed: int | None = None, spec: Mapping[str, Any] | None = None) -> None:
        """Make it. `seed` is that of the first `reset` that names none: `make_vec` numbers environments by it."""
        self.name, self._seed = name, seed
        made = self._call("make", **(spec or {}), env_id=name)
        self.sandbox_id: str | None = made["sandbox_id"]
        self.sandboxes: dict[str, str] = made.get("sandboxes") or {}
        """The sandbox of each agent, if each has its own."""

    @abstractmethod
    def _call(self, what: str, **asked: Any) -> dict[str, Any]:
        """Carry out a request of GEM's API. Raises `ConfigError`, `TaskError` or `SandboxError`."""

    def _open_id(self) -> str:
        if self.sandbox_id is None:
            raise TaskError(f"The environment {self.name} is closed; make it again.")
        return self.sandbox_id

    def reset(self, seed: int | None = None) -> Observed:
        """Begin an episode; returns observation and info."""
        seed, self._seed = (self._seed if seed is None else seed), None
        found = self._call("reset", sandbox_id=self._open_id(), seed=seed)
        return found["observation"], found["info"]

    def step(self, action: Action) -> Stepped:
        """Carry out an action; returns observation, reward, terminated, truncated and info."""
        found = self._call("step", sandbox_id=self._open_id(), action=action)
        return found["observation"], found["reward"], found["terminated"], found["truncated"], found["info"]

    def close(self) -> None:
        """Remove it with its sandboxes. It is idempotent."""
        sandbox_id, self.sandbox_id = self.sandbox_id, None
        if sandbox_id is not None:
            self._call("close", sandbox_id=sandbox_id)

    @property
    def unwrapped(self) -> Self:
        """The environment itself; gem's wrappers ask for it."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ServedEnvironment(GemEnvironment):
    """An environment of a service."""

    def __init__(
        self,
        name: str,
        url: str = DEFAULT_URL,
        token: str | None = None,
        seed: int | None = None,
        timeout_s: float = 300.0,
        spec: Mapping[str, Any] | None = None,
    ) -> None:
        """Make it. What stands in `spec` replaces what EnvHub says: `agents`, `settings`, `image`, `resources`, ..."""
        self._base, self._timeout_s = url.rstrip("/") + PATH, timeout_s
        self._headers = {"Content-Type": "application/json", "X-Cluster": "default"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        super().__init__(name, seed, spec)

    def _call(self, what: str, **asked: Any) -> dict[str, Any]:
        try:
            request = Request(f"{self._base}/{what}", json.dumps(asked).encode(), self._headers)
            with _open(request, timeout=self._timeout_s) as response:
                answer: dict[str, Any] = json.loads(response.read())
                return answer
        except HTTPError as error:
            raise read_error(error.code, error.read()) from None
        except (URLError, OSError, ValueError) as error:
            raise SandboxError(f"The ROCK service at {self._base} does not answer '{what}': {error}.") from None


def read_error(status: int, body: bytes) -> ConfigError | TaskError | SandboxError:
    """Return the error that an answer stands for: the caller's fault, the environment's, or the service's."""
    try:
        sentence = str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        sentence = f"The service answered with the HTTP status {status}."
    if status in (401, 403, 404):
        return ConfigError(sentence)
    return TaskError(sentence) if status == 422 else SandboxError(sentence)


def make(name: str, url: str = DEFAULT_URL, token: str | None = None, **settings: Any) -> ServedEnvironment:
    """Make an environment of a service: a name in EnvHub, of gem-llm, or `ale:SOURCE/SPLIT/TASK`."""
    return ServedEnvironment(name, url, token, **settings)


def register(*names: str, url: str = DEFAULT_URL, token: str | None = None) -> None:
    """Let `gem.make` and `gem.make_vec` of gem-llm make these environments of a service. Raises `ConfigError` if gem is
    not installed, `ValueError` if gem knows the name already."""
    try:
        gem = importlib.import_module("gem")
    except ImportError:
        raise ConfigError("gem is not installed; pip install gem-llm, or use ale_rock.gem.client.make.") from None
    for name in names:
        gem.register(name, ServedEnvironment, name=name, url=url, token=token)
