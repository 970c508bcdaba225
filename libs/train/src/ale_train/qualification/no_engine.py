"""The engine of a run in which nothing samples: a check of tasks."""

from __future__ import annotations

from pathlib import Path

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer


class NoEngine(InferenceEngine):
    """An engine that holds no model and answers every request with an `EngineError`."""

    max_context = 1 << 30
    version = 0

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Do nothing."""

    async def load_weights(self, policy: PolicyVersion) -> None:
        """Do nothing."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Raise `EngineError`."""
        raise EngineError("This run has no engine: nothing samples.")
