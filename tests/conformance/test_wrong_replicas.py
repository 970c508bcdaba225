"""Deliberately wrong replicas, whose servers the kit kills; the engine itself is in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import run_kit_here
from support.fake_packages import write_package
from wrong import Wrong, assert_found

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]

SERVED = """
import asyncio, contextlib
from dataclasses import replace
from ale.errors import EngineError
from ale.specs.engine import Generation
from ale_engine_torch import TorchEngine
from ale_engines.pool.replica import Interrupted
class Served(TorchEngine):
    server = folder = None
    async def load_model(self, folder, tokenizer):
        self.folder, self.tokenizer = folder, tokenizer
        await super().load_model(folder, tokenizer)
        if self.server is None:
            await self.serve()
    async def serve(self):
        self.server = await asyncio.create_subprocess_exec("sleep", "1000")
        self.watch = asyncio.ensure_future(self.await_end(self.server))
    async def await_end(self, server):
        await server.wait()
        await self.note_end()
    async def note_end(self):
        pass
    async def close(self):
        if self.server is not None:
            self.watch.cancel()
            with contextlib.suppress(ProcessLookupError):
                self.server.kill()
            await self.server.wait()
        await super().close()
"""
REPLICA = (
    SERVED
    + """
class Replica(Served):
    interruptions = 0
    async def generate(self, request):
        done, began = Generation((), (), (), "length"), self.interruptions
        while (left := request.sampling.max_tokens - len(done.token_ids)) > 0:
            if began != self.interruptions or self.server.returncode is not None:
                raise self.end(done)
            sampling = replace(request.sampling, max_tokens=min(5, left), seed=left)
            rest = replace(request, token_ids=request.token_ids + done.token_ids, sampling=sampling)
            more = await super().generate(rest)
            done = Generation(
                done.token_ids + more.token_ids, done.logprobs + more.logprobs, done.versions + more.versions, "length"
            )
        return done
    def end(self, done):
        return Interrupted("It was interrupted.", done)
    async def check(self):
        if self.server.returncode is not None:
            raise EngineError("The server ended.")
    async def interrupt(self):
        self.interruptions += 1
    async def restart(self):
        await self.load_model(self.folder, self.tokenizer)
        await self.serve()
"""
)
"""It samples a few tokens at a time."""
ENGINE = "\nclass Fixed(Replica):\n"

WRONG = {
    "nothing is left of an interrupted call": Wrong(
        "engine",
        REPLICA + ENGINE + "    def end(self, done):\n        return EngineError('It was interrupted.')\n",
        "test_interrupting_ends_each_call_with_what_it_sampled",
        "interrupt(): a call raises Interrupted with its partial generation, not EngineError: It was interrupted.",
        "threads: 1",
    ),
    "an interrupt that lets calls finish": Wrong(
        "engine",
        REPLICA + ENGINE + "    async def interrupt(self): ...\n",
        "test_interrupting_ends_each_call_with_what_it_sampled",
        "interrupt(): no call was ended by it",
        "threads: 1",
    ),
    "a check that looks at nothing": Wrong(
        "engine",
        REPLICA + ENGINE + "    async def check(self): ...\n",
        "test_a_killed_server_ends_each_call_and_can_be_started_again",
        "check() of a server that was killed: it must raise EngineError, it returned None",
        "threads: 1",
    ),
    "a restart without the model": Wrong(
        "engine",
        REPLICA + ENGINE + "    async def restart(self):\n        await self.serve()\n",
        "test_a_killed_server_ends_each_call_and_can_be_started_again",
        "after restart() the version is that of the model, 0, not 1",
        "threads: 1",
    ),
    "a server that starts again with the first weights": Wrong(
        "engine",
        SERVED
        + """
class Fixed(Served):
    async def note_end(self):
        version = self._version
        await self.load_model(self.folder, self.tokenizer)
        self._version = self._scheduler.version = version
""",
        "test_calls_go_on_after_a_server_was_killed",
        "after its server was killed, log-probabilities must be those of transformers",
        "threads: 1",
    ),
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    assert_found(WRONG[what], tmp_path)


def test_a_right_replica_passes(tmp_path: Path) -> None:
    write_package(tmp_path, "far-away", REPLICA + ENGINE + "    ...\n", name="right", kind="engine")
    (tmp_path / "settings.yaml").write_text("threads: 1")
    options = ["--ale-config", tmp_path / "settings.yaml", "-k", "test_engine_replica"]
    done = run_kit_here(tmp_path, "engine:right", *options, path=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "3 passed" in done.stdout
