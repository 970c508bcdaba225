"""The contract of one replica of a model: an engine that the pool can check, interrupt and start again."""

from __future__ import annotations

from abc import abstractmethod

from ale.errors import EngineError
from ale.specs.driver import Lifecycle
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine
from ale_engines.pool.continuation import NOTHING


class Interrupted(EngineError):
    """A generation ended before its time, and not by its own doing: it was aborted, or its server died.

    `partial` holds what was sampled until then, with its log-probabilities and versions; it may be empty. Its finish
    reason is `length`."""

    def __init__(self, message: str, partial: Generation) -> None:
        super().__init__(message)
        self.partial = partial


class Replica(Lifecycle, InferenceEngine):
    """One engine of a pool. It serves after `load_model`, and again after `restart`.

    `generate` raises `Interrupted` if the replica cannot finish a generation, and another `EngineError` if the request
    itself cannot be served. `sleep` may drop the weights: after `wake`, the caller loads the current ones before it
    sends requests."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The replica's name in messages and metrics, such as `vllm 0`."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many requests it samples at the same time."""

    @property
    def requests(self) -> int:
        """How many requests of others than the pool it has at the moment."""
        return 0

    @property
    def place(self) -> str:
        """Where it is, for people: node and devices, as far as they are known, such as `4f3a2b1c · cuda:0`."""
        return ""

    def sampled_so_far(self, request: GenerateRequest, after: int = 0) -> Generation:
        """Return what it has sampled, beyond `after` tokens, for a request that runs: the object that `generate` got.

        So another process still has these tokens if the replica's process dies. Empty if the replica does not know."""
        return NOTHING

    @property
    def frees_memory(self) -> bool:
        """Whether others can use its devices' memory while it sleeps; known once it has started."""
        return True

    @abstractmethod
    async def check(self) -> None:
        """Raise `EngineError` if the replica does not serve. It takes at most a few seconds."""

    @abstractmethod
    async def interrupt(self) -> None:
        """End all generations at once: each raises `Interrupted` with its partial result."""

    @abstractmethod
    async def restart(self) -> None:
        """End what is left of the replica and start it again with the model of `load_model`, at version 0. The caller
        loads the current weights before it sends requests. Raises `EngineError` if it does not start."""
