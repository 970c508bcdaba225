"""A run whose model is another server's (`endpoint.upstream`): the teacher answers in the policy's place.

Its replies are recorded as not sampled, so that no RL trains on them, and `sft.demonstrations.data` can.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ale.errors import ConfigError, EngineError
from ale.run_config import RunConfig, UpstreamConfig
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer

if TYPE_CHECKING:
    from ale.endpoint.upstream import Upstream


def teacher(config: UpstreamConfig) -> Upstream:
    """The upstream of a run. Raises `ConfigError` where the section names none."""
    from ale.endpoint.upstream import Route, Upstream

    key = None if config.key is None else config.key.get_secret_value()
    route = Route(config.url, model=config.model, key=key, key_from="endpoint.upstream.key")
    return Upstream([route], parameters=config.parameters, timeout_s=config.timeout_s)


def check_teacher(config: RunConfig, *, trains: bool, takes_policy: bool) -> None:
    """Refuse what a teacher cannot be used for. Raises `ConfigError`."""
    if config.endpoint.upstream is None:
        return
    teacher(config.endpoint.upstream)
    if trains:
        raise ConfigError(
            "endpoint.upstream: the upstream answers in the policy's place, and its tokens are not the policy's, so there is nothing "
            "to train. Use '--only rollout' or 'ale eval'; what a rollout leaves is data for sft.demonstrations.data of another run."
        )
    if takes_policy:
        raise ConfigError("endpoint.upstream: the upstream answers in the policy's place; leave out '--from RUN'.")


class NoEngine(InferenceEngine):
    """Stands where a run needs no engine."""

    max_context = 1 << 30
    version = 0

    def __init__(self) -> None:
        super().__init__(PluginConfig(), DriverContext())

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Nothing to load."""

    async def load_weights(self, policy: PolicyVersion) -> None:
        """Nothing to load."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Raises `EngineError`."""
        raise EngineError("This run has no engine: the model is that of endpoint.upstream.")
