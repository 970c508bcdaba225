"""Deliberately wrong engines: each breaks one rule of the contract, and the kit says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong import AWAITED_S, Wrong, assert_found

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]

ENGINE = (
    "from ale_engines.scripted import ScriptedEngine\nfrom dataclasses import replace\nimport asyncio\n"
    "class Fixed(ScriptedEngine):\n"
)

WRONG = {
    "a logprob too few": Wrong(
        "engine",
        ENGINE
        + """
    async def generate(self, request):
        made = await super().generate(request)
        return replace(made, logprobs=made.logprobs[:-1])
""",
        "test_a_generation_has_a_logprob_and_a_version_for_each_token",
        "one log-probability and one version a token",
        "answers: [hello]",
    ),
    "more than max_tokens": Wrong(
        "engine",
        ENGINE
        + """
    async def generate(self, request):
        return await super().generate(replace(request, sampling=replace(request.sampling, max_tokens=999)))
""",
        "test_concurrent_requests_are_all_answered",
        "1 to max_tokens=1 tokens, not",
        "answers: [hello]",
    ),
    "an answer after close": Wrong(
        "engine",
        ENGINE + "    async def close(self): ...\n",
        "test_nothing_is_answered_after_close",
        "generate() after close(): it must raise EngineError, it returned Generation",
        "answers: [hello]",
    ),
    "no answer after a cancelled call": Wrong(
        "engine",
        ENGINE
        + """
    lock = None
    async def generate(self, request):
        self.lock = self.lock or asyncio.Lock()
        await self.lock.acquire()
        await asyncio.sleep(0.005)
        made = await super().generate(request)
        self.lock.release()
        return made
""",
        "test_cancelling_a_call_frees_its_slot",
        "TimeoutError",
        "answers: [hello]",
        timeout_s=AWAITED_S,
    ),
    "a pause that does nothing": Wrong(
        "engine",
        ENGINE + "    async def pause(self): ...\n",
        "test_requests_wait_while_an_engine_is_paused",
        "a paused engine must let requests wait; it answered",
        "answers: [hello]",
    ),
    "a context without an end": Wrong(
        "engine",
        ENGINE
        + """
    async def generate(self, request):
        return await super().generate(replace(request, token_ids=request.token_ids[-100:]))
""",
        "test_a_request_that_cannot_fit_is_refused",
        "a prompt beyond max_context: it must raise EngineError, it returned Generation",
        "answers: [hello]",
    ),
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    assert_found(WRONG[what], tmp_path)
