"""The inference contract: token ids in, token ids out. Text is made at the endpoint, in one place.

Capabilities, with their meaning: `ale.specs.kinds.CAPABILITIES['engine']`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ale.specs.driver import Driver
from ale.trajectory import FinishReason


class Tokenizer(Protocol):
    """The little that an engine may need of a tokenizer."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a model response."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens in the text are recognised, none are added."""
        ...

    def decode(self, token_ids: list[int] | tuple[int, ...]) -> str:
        """Text of `token_ids`, special tokens included."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A set of weights. Either `weights` (in memory, name -> tensor) or `path` (a Hugging Face folder), or both.

    The names are those of the model's Hugging Face `state_dict`; tied weights may stand under each of their names. The
    tensors are the receiver's: whoever publishes them does not change them any more.
    """

    version: int
    path: Path | None = None
    weights: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 cut nothing off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation. `session` names the conversation, `call` counts its model calls from 0 (for prefix caches
    and scripted engines)."""

    token_ids: tuple[int, ...]
    sampling: Sampling
    session: str = ""
    call: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """What was sampled. The stop token, where one was sampled, is the last of `token_ids`.

    `logprobs[i]` is the natural log-probability of `token_ids[i]` under the model at temperature 1 with nothing cut
    off, so that it compares with the trainer's; `versions[i]` is the policy version that sampled it.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason


class InferenceEngine(Driver, ABC):
    """Samples from a policy for many requests at once."""

    @property
    @abstractmethod
    def max_context(self) -> int:
        """Most tokens (prompt and response) of one request."""

    @abstractmethod
    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Load a Hugging Face folder; engines without a model get None. Called again it replaces the model. The version
        is 0 afterwards."""

    @abstractmethod
    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample until one of `sampling.stop_token_ids`, `sampling.max_tokens`, or the end of the context, whichever comes
        first; a prompt that leaves no room for one token raises `EngineError`. Cancelling the call frees its place.

        An engine without the capability `real_tokens` may end its answers by itself; its log-probabilities are what it
        says, and no run trains on them.
        """

    @abstractmethod
    async def load_weights(self, policy: PolicyVersion) -> None:
        """Swap the weights; generations under way continue, their later tokens carry the new version. An engine without
        weights notes the version."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The version of the weights in use."""

    async def pause(self) -> None:
        """Stop sampling after the current step; requests wait."""

    async def resume(self) -> None:
        """Go on after `pause`."""

    async def sleep(self) -> None:
        """Give memory back until `wake` (capability `sleep`)."""

    async def wake(self) -> None:
        """Take memory again after `sleep`."""

    def metrics(self) -> dict[str, float]:
        """Counters since the start: at least `prompt_tokens`, `sampled_tokens`, `busy_s` (seconds in which something was
        sampled) and `slot_use` (share, 0 to 1, of the computed places that held a request; 1 where there are none)."""
        return {}
