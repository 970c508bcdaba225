"""These tests check what an engine does when its server is killed. A `Replica` of a pool can be interrupted and started
again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Protocol, runtime_checkable

import pytest

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Generation
from ale_testing.async_tests import fails_with, patience_s
from ale_testing.engine_requests import LONG, ask, check, check_logprobs, weights_of
from ale_testing.shared_engine import SharedEngine, engine_test

needs = pytest.mark.ale_needs
ATTEMPTS = 6
TURNS = 20
"""Of the event loop, in which it takes all answers that have come."""


@runtime_checkable
class Restartable(Protocol):
    """What a replica can do beyond an engine."""

    async def check(self) -> None: ...

    async def interrupt(self) -> None: ...

    async def restart(self) -> None: ...


@needs.with_args(Restartable)
@engine_test()
async def test_interrupting_ends_each_call_with_what_it_sampled(shared: SharedEngine) -> None:
    replica = _replica(shared)
    requests, under_way = await _begin(shared)
    await replica.interrupt()
    await _require_partials(shared, requests, under_way, "interrupt()")
    await replica.check()
    request = ask(shared.tokenizer)
    check(await shared.engine.generate(request), request, shared.tokenizer, real=shared.real)


@needs.with_args(Restartable)
@engine_test()
async def test_a_killed_server_ends_each_call_and_can_be_started_again(shared: SharedEngine) -> None:
    replica, engine = _replica(shared), shared.engine
    servers = shared.server_processes()
    if not servers:
        pytest.skip("the engine's server is not a process below this one")
    await shared.update()
    requests, under_way = await _begin(shared)
    _kill(servers)
    await _require_partials(shared, requests, under_way, "the server was killed")
    await fails_with(replica.check(), EngineError, why="check() of a server that was killed")
    await replica.restart()
    shared.note_restart()
    await replica.check()
    assert engine.version == 0, f"after restart() the version is that of the model, 0, not {engine.version}"
    for version in (0, 1):
        if version:
            await shared.update()
        request = ask(shared.tokenizer, seed=version)
        again = await asyncio.wait_for(engine.generate(request), patience_s())
        check(again, request, shared.tokenizer, real=shared.real)
        assert set(again.versions) == {version}, f"tokens carry the version in use, {version}, not {again.versions}"
        if shared.real:
            check_logprobs(again, request, weights_of(shared), "after restart(), ")


@engine_test()
async def test_calls_go_on_after_a_server_was_killed(shared: SharedEngine) -> None:
    engine = shared.engine
    if isinstance(engine, Restartable):
        return  # it is somebody else's task to start it again
    servers = shared.server_processes()
    if not servers:
        return  # it computes in this process
    await shared.update()
    version = engine.version
    requests, under_way = await _begin(shared)
    _kill(servers)
    await asyncio.wait(under_way)
    for request, call in zip(requests, under_way, strict=True):
        error = call.exception()
        assert error is None or isinstance(error, EngineError), (
            f"a call whose server was killed goes on or raises EngineError, not {error!r}"
        )
        if error is None:
            check(call.result(), request, shared.tokenizer, real=shared.real)
            check_logprobs(call.result(), request, weights_of(shared), "after its server was killed, ")
    request = ask(shared.tokenizer)
    again = await engine.generate(request)
    assert set(again.versions) == {version}, "a server that was started again has the current weights, or serves not"
    check_logprobs(again, request, weights_of(shared), "after its server was killed, ")


def _kill(processes: list[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _replica(shared: SharedEngine) -> Restartable:
    assert isinstance(shared.engine, Restartable)
    return shared.engine


async def _begin(shared: SharedEngine) -> tuple[list[GenerateRequest], list[asyncio.Task[Generation]]]:
    """Eight calls that are under way, half of their time over."""
    loop, engine = asyncio.get_running_loop(), shared.engine
    requests = [ask(shared.tokenizer, "x" * (1 + i), session=f"cut{i}", seed=i, max_tokens=LONG) for i in range(8)]
    took_s = float("inf")
    for _ in range(2):  # the shorter time counts: a machine that was busy meanwhile makes one too long
        began = loop.time()
        await asyncio.gather(*map(engine.generate, requests))
        took_s = min(took_s, loop.time() - began)
    for _ in range(ATTEMPTS):
        under_way = [asyncio.ensure_future(engine.generate(request)) for request in requests]
        await asyncio.sleep(took_s / 2)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if not all(call.done() for call in under_way):
            return requests, under_way
        took_s /= 2  # the machine was busier before
    raise AssertionError(f"calls of {LONG} tokens end sooner than in a {2**ATTEMPTS}th of the time that they took")


async def _require_partials(
    shared: SharedEngine, requests: list[GenerateRequest], under_way: list[asyncio.Task[Generation]], why: str
) -> None:
    """Each call ends with an error that holds what was sampled until then: half of its time was over."""
    done, waiting = await asyncio.wait(under_way, timeout=patience_s())
    assert not waiting, f"{why}: {len(waiting)} calls still wait after {patience_s():g} s"
    assert any(call.exception() is not None for call in done), f"{why}: no call was ended by it"
    kept = 0
    for request, call in zip(requests, under_way, strict=True):
        error = call.exception()
        if error is None:
            continue  # it had finished
        assert isinstance(error, EngineError), f"{why}: a call raises an EngineError, not {error!r}"
        partial = getattr(error, "partial", None)
        assert isinstance(partial, Generation), (
            f"{why}: a call raises Interrupted with its partial generation, not {type(error).__name__}: {error}"
        )
        assert partial.finish_reason == "length", f"a partial generation's finish_reason is length: {partial}"
        kept += len(partial.token_ids)
        assert len(partial.token_ids) == len(partial.logprobs) == len(partial.versions) < LONG
        if shared.real:
            check_logprobs(partial, request, weights_of(shared), "of a partial generation, ")
    assert kept or not shared.real, f"{why}: the partial generations hold none of the tokens that had been sampled"
