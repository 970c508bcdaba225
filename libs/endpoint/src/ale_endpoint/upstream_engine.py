"""The engine `upstream`: another server's model (a teacher) answers in the policy's place.

Its replies are recorded as not sampled: RL never trains on them; supervised training can
(`sft.demonstrations.data`). It serves `--only rollout`, `ale eval` and `ale tasks select`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, SecretStr, field_validator, model_validator

from ale.errors import ConfigError, EngineError
from ale.messages import Answer, ModelCall
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer
from ale_endpoint.upstream import Route, Upstream


class UpstreamEngine(Driver, InferenceEngine):
    """Another server's model, in the policy's place."""

    class Config(PluginConfig):
        """Where the model is."""

        url: str = Field(description="URL of an OpenAI-compatible API, such as https://host/v1.")
        model: str = Field(min_length=1, description="Name of the model there.")
        key: SecretStr | None = Field(
            None,
            description="The API's key, as ${oc.env:NAME}. A key written out in the run file is refused.",
        )
        parameters: dict[str, Any] = Field(
            default_factory=dict,
            description=(
                "Parameters of every request, such as {temperature: 0.7, max_tokens: 4096}. For others the server's "
                "defaults apply, not those of `rollout` or `eval`."
            ),
        )
        timeout_s: float = Field(600.0, gt=0, description="Seconds after which one attempt of a call is given up.")

        @field_validator("parameters")
        @classmethod
        def _refuse_session_parameters(cls, value: dict[str, Any]) -> dict[str, Any]:
            for name in ("messages", "tools", "model", "n", "stream"):
                if name in value:
                    raise ValueError(f"'{name}' is set by the session for each call; remove it from the parameters")
            return value

        @model_validator(mode="after")
        def _route_is_valid(self) -> UpstreamEngine.Config:
            try:
                route_of(self)
            except ConfigError as error:
                raise ValueError(str(error).rstrip(".")) from None
            return self

    api_version: ClassVar[str] = ">=1.0,<1.2"
    max_context = 1 << 30
    config: Config

    def __init__(self, config: Config, context: DriverContext) -> None:
        super().__init__(config, context)
        self._upstream = Upstream([route_of(config)], parameters=config.parameters, timeout_s=config.timeout_s)
        self._open = False
        self._version = 0

    @property
    def version(self) -> int:
        """The last version that was loaded; answers do not depend on it."""
        return self._version

    async def start(self) -> None:
        """Open the HTTP client."""
        await self._upstream.__aenter__()
        self._open = True

    async def close(self) -> None:
        """Close the HTTP client."""
        if self._open:
            self._open = False
            await self._upstream.__aexit__()

    async def answer(self, call: ModelCall) -> Answer:
        """Raises as `Upstream.answer` does."""
        return await self._upstream.answer(call)

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Nothing to load."""

    async def load_weights(self, policy: PolicyVersion) -> None:
        """Store the version."""
        self._version = policy.version

    async def generate(self, request: GenerateRequest) -> Generation:
        """Raises `EngineError`: there are no tokens."""
        raise EngineError("The engine 'upstream' answers with messages; it samples no tokens.")


def route_of(config: UpstreamEngine.Config) -> Route:
    """Return the route to the model. Raises `ConfigError` if the URL or the key is invalid."""
    key = None if config.key is None else config.key.get_secret_value()
    return Route(config.url, model=config.model, key=key, key_from="engine.key")
