"""One engine for the tests of a suite, because a server may take a minute to start.

1. The tests of a plugin run in one event loop (`SharedEngine.run`), in which its engine stays. A test names the model
   that it needs; the engine loads it unless it has it.
2. The weights and their version stay as the last test left them. A test that needs others calls `update`.
3. A test that fails, or that closes the engine, leaves none: the next test starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ale.errors import AleError
from ale.session.tokenizer import ChatTokenizer, byte_tokenizer
from ale.specs.engine import FolderTicket, InferenceEngine, MemoryTicket, PolicyVersion, Ticket
from ale_testing import processes
from ale_testing.async_tests import require_no_other_task, run_within_deadline
from ale_testing.plugin_under_test import Subject
from ale_testing.tiny_model import QWEN2_TIED, TinyShape, write_tiny_model

EngineTest = Callable[["SharedEngine"], Coroutine[Any, Any, None]]
SEEDS = 3
"""Random weights that updates take in turn, besides those of seed 0, which are loaded first."""


def engine_test(shape: TinyShape = QWEN2_TIED) -> Callable[[EngineTest], Callable[[SharedEngine], None]]:
    """A test of an engine that has loaded a model of this shape, or none where it does not sample from models."""

    def decorate(test: EngineTest) -> Callable[[SharedEngine], None]:
        @functools.wraps(test)
        def run(shared_engine: SharedEngine) -> None:
            shared_engine.run(test, shape)

        vars(run).pop("__wrapped__")  # pytest would look for the fixtures of the test's own signature
        return run

    return decorate


class SharedEngine:
    """The engine of a plugin under test, with the weights that it has."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.tokenizer: ChatTokenizer = byte_tokenizer()
        self.folder: Path | None = None
        """The Hugging Face folder with the weights in use; None where the engine has no model."""
        self._engine: Any = None
        self._shape: TinyShape | None = None
        self._runner = asyncio.Runner()
        self._updates = 0
        self._cannot_start = ""
        self._others: set[int] = set()

    @property
    def engine(self) -> InferenceEngine:
        """The engine, started, with its model."""
        assert self._engine is not None
        engine: InferenceEngine = self._engine
        return engine

    @property
    def real(self) -> bool:
        """Whether the engine samples from models."""
        return self.subject.can("real_tokens")

    def run(self, test: EngineTest, shape: TinyShape) -> None:
        """Run a test within its deadline, in the loop in which the engine lives."""

        if self._cannot_start:
            # Every further attempt would take as long as a server needs to fail.
            raise AssertionError(f"the engine could not be started for an earlier test: {self._cannot_start}")
        try:
            try:
                run_within_deadline(self._load(shape), self._runner.run)  # a deadline of its own: servers start slowly
            except Exception as error:
                self._cannot_start = str(error) or type(error).__name__
                raise
            run_within_deadline(test(self), self._runner.run)
        except BaseException:
            with contextlib.suppress(AssertionError, AleError):
                self._end(self._close())
            raise

    def end(self) -> None:
        """Close what is left. Raises `AssertionError` if a task of the engine's remains."""
        try:
            self._end(self.discard())
        finally:
            self._runner.close()

    async def discard(self) -> None:
        """Close the engine; the next test starts another. Raises `AssertionError` if it leaves a task behind."""
        await self._close()
        current = asyncio.current_task()
        await require_no_other_task({current} if current is not None else set())

    async def update(self, transport: str | None = None) -> PolicyVersion:
        """Load other weights, by this transport or one that the engine names; returns them with the version after the
        present one."""
        engine = self.engine
        self._updates += 1
        folder = self._model_folder(1 + self._updates % SEEDS) if self.real else None
        policy = PolicyVersion(engine.version + 1, self._ticket(folder or self.subject.folder, transport))
        await engine.load_weights(policy)
        assert engine.version == policy.version, (
            f"version must be {policy.version} after load_weights, not {engine.version}"
        )
        self.folder = folder
        return policy

    def note_restart(self) -> None:
        """After `restart` the engine has the weights of `load_model`."""
        self.folder = self._model_folder(0)

    def server_processes(self) -> list[int]:
        """The processes of the engine's servers, as far as they are below this one."""
        return processes.servers_below(self._others)

    # -- starting, loading, closing ---------------------------------------------------------------------------

    async def _load(self, shape: TinyShape) -> None:
        if self._engine is None:
            self._others = processes.below()
            self._engine, self._shape = self.subject.build(), None
            await self._engine.start()
        if self._shape is None or (self.real and self._shape != shape):
            self._shape = shape
            self.folder = self._model_folder(0) if self.real else None
            await self._engine.load_model(self.folder, self.tokenizer)
            version = self._engine.version
            assert version == 0, f"the version of a model that was just loaded is 0, not {version}"

    async def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    def _end(self, closing: Coroutine[Any, Any, None]) -> None:
        run_within_deadline(closing, self._runner.run)

    # -- weights ----------------------------------------------------------------------------------------------

    def _model_folder(self, seed: int) -> Path:
        assert self._shape is not None
        folder = self.subject.folder / f"{self._shape}-{seed}"
        if not folder.exists():
            # Always the same tokenizer: it is trained on the same texts.
            self.tokenizer = write_tiny_model(folder, seed, self._shape)
        return folder

    def _ticket(self, folder: Path, transport: str | None) -> Ticket:
        if transport is None:
            transport = next((name for name in ("memory", "folder") if name in self.engine.transports), "none")
        if transport == "folder":
            return FolderTicket(folder)
        if transport == "memory":
            torch = pytest.importorskip("torch", reason="weights in memory are tensors")
            from safetensors.numpy import load_file

            arrays = load_file(str(folder / "model.safetensors"))
            return MemoryTicket({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
        pytest.skip("the kit hands weights over by memory or from a folder; the engine names neither")
