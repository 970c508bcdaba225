"""The engine contract: token ids in, token ids out. The model session alone converts between text and tokens.

`ale.specs.kinds.CAPABILITIES['engine']` lists the capabilities with their meaning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from ale.messages import Answer, ModelCall, short_repr
from ale.trajectory import FinishReason


class Tokenizer(Protocol):
    """The few methods of a tokenizer that an engine may need."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a model response."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`; special tokens in the text are recognised, and none are added."""

    def decode(self, token_ids: list[int] | tuple[int, ...]) -> str:
        """Return the text of `token_ids`, special tokens included."""


class Ticket(Protocol):
    """An engine fetches the weights of a policy version with it, by one transport. It is plain data, so that it can be
    sent to another process if its transport works between processes."""

    transport: ClassVar[str]
    """The name of the transport, as trainers and engines list it in `transports`."""


@dataclass(frozen=True, slots=True)
class MemoryTicket:
    """The weights themselves, for an engine in the trainer's process.

    Their names are those of the model's Hugging Face `state_dict`; tied weights may appear under each of their names.
    The receiver owns the tensors: the trainer does not change them any more.
    """

    transport: ClassVar[str] = "memory"
    weights: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FolderTicket:
    """A Hugging Face folder that holds the whole model. It stays until the engine has loaded a newer version."""

    transport: ClassVar[str] = "folder"
    folder: Path


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A set of weights: its number, and the ticket with which an engine fetches it."""

    version: int
    ticket: Ticket


def agree_on_transport(offered: Sequence[str], accepted: Sequence[str]) -> str | None:
    """Return the first transport of the trainer (`offered`) that the engine (`accepted`) names too; None if there is
    none."""
    return next((name for name in offered if name in accepted), None)


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

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Generation:
    """The result of one generation. A sampled stop token is the last of `token_ids`.

    `logprobs[i]` is the natural log-probability of `token_ids[i]` under the model at temperature 1 with nothing cut
    off, so that it can be compared with the trainer's; `versions[i]` is the policy version that sampled it.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason

    __repr__ = short_repr


class InferenceEngine(ABC):
    """It samples from a policy for many requests at once."""

    transports: tuple[str, ...] = ()
    """The transports by which it takes new weights (`Ticket.transport`): `memory`, `folder`, or others that a trainer
    names too. No run that trains can use an engine without any. An object, or its settings, may name fewer."""

    @property
    @abstractmethod
    def max_context(self) -> int:
        """The maximum number of tokens (prompt and response) of one request."""

    @abstractmethod
    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Load a Hugging Face folder; engines without a model get None. A second call replaces the model. The version
        is 0 afterwards."""

    @abstractmethod
    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample until one of `sampling.stop_token_ids`, `sampling.max_tokens`, or the end of the context, whichever
        comes first; a prompt that leaves no room for one token raises `EngineError`. Cancelling the call frees its
        slot.

        An engine without the capability `real_tokens` may end its answers by itself; its log-probabilities need not be
        real, and no run trains on them.
        """

    @abstractmethod
    async def load_weights(self, policy: PolicyVersion) -> None:
        """Swap the weights; running generations continue, and their later tokens carry the new version. An engine
        without weights only stores the version. Raises `EngineError`, and changes nothing, if the ticket's transport is
        not one that the engine names, or if it leads to no weights of this model."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The version of the weights in use."""

    async def pause(self) -> None:  # noqa: B027 - an engine may have nothing to do
        """Stop sampling after the current decoding step; requests wait."""

    async def resume(self) -> None:  # noqa: B027 - an engine may have nothing to do
        """Continue after `pause`."""

    async def sleep(self) -> None:  # noqa: B027 - an engine may have nothing to do
        """Free memory until `wake`, if the engine can."""

    async def wake(self) -> None:  # noqa: B027 - an engine may have nothing to do
        """Take the memory again after `sleep`."""

    def metrics(self) -> dict[str, float]:
        """Return counters since the start: at least `prompt_tokens`, `sampled_tokens`, `busy_s` (seconds in which
        something was sampled) and `slot_use` (share, 0 to 1, of the computed slots that held a request; 1 if there are
        no slots)."""
        return {}


@runtime_checkable
class FollowedEngine(Protocol):
    """An engine that can say what it has sampled while it samples."""

    def sampled_so_far(self, request: GenerateRequest, after: int = 0) -> Generation:
        """Return what has been sampled, beyond `after` tokens, for a request: the object that `generate` got."""


@runtime_checkable
class MessageEngine(Protocol):
    """An engine that answers calls with messages, such as another server's model: it has no tokens of the policy.

    A session asks it for whole replies and records them as not sampled, so that no RL trains on them."""

    async def answer(self, call: ModelCall) -> Answer:
        """Answer a call. Raises `AleError`."""
