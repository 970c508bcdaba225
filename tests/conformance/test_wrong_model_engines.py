"""Deliberately wrong engines with a model: wrong when weights change, calls are given up, or contexts end."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong import AWAITED_S, Wrong, assert_found

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]

ENGINE = """
import asyncio
from dataclasses import replace
from ale.errors import EngineError
from ale.specs.engine import MemoryTicket
from ale_engine_torch import TorchEngine
from ale_engine_torch.load_decoder import read_weights
class Fixed(TorchEngine):
"""
STALE = (
    ENGINE
    + """
    async def load_model(self, folder, tokenizer):
        self.first = read_weights(folder)
        await super().load_model(folder, tokenizer)
    async def load_weights(self, policy):
        weights = dict(policy.ticket.weights)
        weights |= {{name: tensor for name, tensor in self.first.items() if {which!r} in name}}
        await super().load_weights(replace(policy, ticket=MemoryTicket(weights)))
"""
)
"""Takes new weights, all but some, and says that it has them."""
RUNNING = """
    running = 0
    async def generate(self, request):
        self.running += 1
        try:
            return await self.sample(request)
        finally:
            self.running -= 1
    async def sample(self, request):
        return await TorchEngine.generate(self, request)
"""
LABELLED = "return replace(made, versions=(self.version,) * len(made.versions))"


def wrong(source: str, test: str, says: str, timeout_s: float = 120.0) -> Wrong:
    return Wrong("engine", source, test, says, "threads: 1", timeout_s)


WRONG = {
    "logprobs a little too low": wrong(
        ENGINE
        + """
    async def generate(self, request):
        made = await super().generate(request)
        return replace(made, logprobs=tuple(p - 0.001 for p in made.logprobs))
""",
        "test_logprobs_of_a_tied_qwen2_are_those_of_transformers",
        "(version 0) is 0.001 apart",
    ),
    "an output layer that stays": wrong(
        STALE.format(which="lm_head"),
        "test_logprobs_of_an_untied_llama_are_those_of_transformers",
        "log-probabilities must be those of transformers with the weights of the token's version",
    ),
    "norms of queries that stay": wrong(
        STALE.format(which="q_norm"),
        "test_logprobs_of_an_untied_qwen3_are_those_of_transformers",
        "log-probabilities must be those of transformers with the weights of the token's version",
    ),
    "new weights from memory that are the old ones": wrong(
        STALE.format(which="model."),
        "test_new_weights_from_memory_carry_their_version",
        "load_weights must change what is sampled",
    ),
    "new weights from a folder without the last layer": wrong(
        ENGINE
        + """
    async def load_model(self, folder, tokenizer):
        self.first = read_weights(folder)
        await super().load_model(folder, tokenizer)
    async def load_weights(self, policy):
        weights = read_weights(policy.ticket.folder)
        weights |= {name: tensor for name, tensor in self.first.items() if "layers.1" in name}
        await super().load_weights(replace(policy, ticket=MemoryTicket(weights)))
""",
        "test_new_weights_from_a_folder_carry_their_version",
        "after load_weights, log-probabilities must be those of transformers",
    ),
    "a second update that is dropped": wrong(
        ENGINE
        + """
    asked = True
    async def load_weights(self, policy):
        if self.asked:
            await super().load_weights(policy)
        self._version, self._scheduler.version, self.asked = policy.version, policy.version, False
    async def generate(self, request):
        self.asked = True
        return await super().generate(request)
""",
        "test_two_updates_in_a_row_leave_nothing_of_earlier_weights",
        "after an update, with a prompt that was sent before, log-probabilities must be those of transformers",
    ),
    "a prefix cache that crosses versions": wrong(
        ENGINE
        + """
    async def load_weights(self, policy):
        await super().load_weights(policy)
        self._scheduler._table.weights -= 1
""",
        "test_two_updates_in_a_row_leave_nothing_of_earlier_weights",
        "after an update, with a prompt that was sent before, log-probabilities must be those of transformers",
    ),
    "an update that waits for what runs": wrong(
        ENGINE
        + RUNNING
        + """
    async def load_weights(self, policy):
        while self.running:
            await asyncio.sleep(0.001)
        await super().load_weights(policy)
""",
        "test_an_update_in_mid_request_changes_the_tokens_after_it",
        "running generations continue with the new weights: of 6 updates",
    ),
    "one version for a whole generation": wrong(
        ENGINE
        + f"""
    async def generate(self, request):
        made = await super().generate(request)
        {LABELLED}
""",
        "test_an_update_in_mid_request_changes_the_tokens_after_it",
        "with an update in mid-request, log-probabilities must be those of transformers",
    ),
    "one version for a whole generation under load": wrong(
        ENGINE
        + RUNNING
        + f"""
    async def sample(self, request):
        busy = self.running > 16
        made = await TorchEngine.generate(self, request)
        if not busy:
            return made
        {LABELLED}
""",
        "test_updates_under_load_mix_up_no_versions",
        "with updates under a load of 32 requests, log-probabilities must be those of transformers",
    ),
    "a version that is raised before the weights are there": wrong(
        ENGINE
        + """
    async def load_weights(self, policy):
        self._version = policy.version
        await super().load_weights(policy)
""",
        "test_bad_weights_are_an_error_and_the_old_ones_stay",
        "weights that could not be loaded must not raise the version",
    ),
    "one call given up ends all": wrong(
        ENGINE
        + """
    async def generate(self, request):
        try:
            return await super().generate(request)
        except asyncio.CancelledError:
            self._mailbox.send(lambda ended: self._scheduler.fail_all(EngineError("All was aborted.")))
            raise
""",
        "test_of_16_requests_half_are_given_up_and_the_others_finish",
        "giving up calls must not end the others; one raised EngineError: All was aborted.",
    ),
    "slots that calls given up keep": wrong(
        ENGINE
        + """
    slots = None
    async def generate(self, request):
        self.slots = self.slots or asyncio.Semaphore(16)
        await self.slots.acquire()
        made = await super().generate(request)
        self.slots.release()
        return made
""",
        "test_of_16_requests_half_are_given_up_and_the_others_finish",
        "are the slots of earlier ones still taken?",
        AWAITED_S,
    ),
    "a context one token short": wrong(
        ENGINE
        + """
    async def generate(self, request):
        room = self.max_context - len(request.token_ids) - 1
        most = min(request.sampling.max_tokens, max(room, 1))
        return await super().generate(replace(request, sampling=replace(request.sampling, max_tokens=most)))
""",
        "test_a_context_can_be_filled_to_its_last_token",
        "leaves room for 8: max_tokens=8 gave 7 and finish_reason length",
    ),
    "a full prompt that is cut": wrong(
        ENGINE
        + """
    async def generate(self, request):
        return await super().generate(replace(request, token_ids=request.token_ids[-100:]))
""",
        "test_a_prompt_that_fills_the_context_is_refused_with_a_sentence",
        "which leaves no room for one more: it must raise EngineError, it returned Generation",
    ),
    "a refusal without the limit": wrong(
        ENGINE
        + """
    async def generate(self, request):
        try:
            return await super().generate(request)
        except EngineError:
            raise EngineError("400 Bad Request") from None
""",
        "test_a_prompt_that_fills_the_context_is_refused_with_a_sentence",
        "the error must name the limit of 256 tokens; it is '400 Bad Request'",
    ),
    "a pause that outlives close": wrong(
        ENGINE
        + """
    waiting = False
    async def pause(self):
        self.waiting = True
    async def generate(self, request):
        while self.waiting:
            await asyncio.sleep(0.01)
        return await super().generate(request)
""",
        "test_close_ends_requests_that_wait_in_a_paused_engine",
        "a request that waits when the engine closes: it must raise EngineError, it raised TimeoutError",
        AWAITED_S,
    ),
    "a task that outlives close": wrong(
        ENGINE
        + """
    async def start(self):
        await super().start()
        self.watching = asyncio.ensure_future(asyncio.Event().wait())
""",
        "test_nothing_is_answered_after_close",
        "the plugin must leave no asyncio task behind",
    ),
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    assert_found(WRONG[what], tmp_path)
