"""An engine that does whatever a test makes it do, and an endpoint over it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ale.endpoint.session import ModelEndpoint
from ale.endpoint.tokenizer import byte_tokenizer
from ale.hooks import Hooks
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine

TOKENIZER = byte_tokenizer()


class Pliable(InferenceEngine):
    """Says `Yes` until `does` is set; notes how often a call was cancelled elsewhere."""

    max_context = 1 << 20
    version = 1

    def __init__(self) -> None:
        super().__init__(PluginConfig(), DriverContext())
        self.does: Callable[[GenerateRequest], Awaitable[Any]] | None = None

    async def load_model(self, folder: object, tokenizer: object) -> None: ...

    async def load_weights(self, policy: object) -> None: ...

    async def generate(self, request: GenerateRequest) -> Generation:
        if self.does is not None:
            return await self.does(request)
        made, most = spoken("Yes"), request.sampling.max_tokens
        if most >= len(made.token_ids):
            return made
        return Generation(made.token_ids[:most], made.logprobs[:most], made.versions[:most], "length")


def spoken(text: str) -> Generation:
    """A whole answer."""
    ids = (*TOKENIZER.encode(text), *TOKENIZER.stop_token_ids)
    return Generation(ids, (-0.1,) * len(ids), (1,) * len(ids), "stop")


def pliable_endpoint() -> tuple[ModelEndpoint, Pliable]:
    """An endpoint that nothing serves yet, and its engine."""
    engine = Pliable()
    return ModelEndpoint(TOKENIZER, engine, Hooks()), engine
