"""Sessions whose record must be intact after every bad request, over an engine that does what a test wants."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from raw_requests import post
from served_sessions import ServedSession, ServedSessions, pliable_endpoint

from ale.specs.engine import Sampling
from ale_testing.fake_engines import ProgrammableEngine


@pytest.fixture
async def served() -> AsyncIterator[tuple[ServedSessions, ProgrammableEngine]]:
    endpoint, engine = pliable_endpoint()
    async with endpoint:
        yield endpoint, engine


@pytest.fixture
def engine(served: tuple[ServedSessions, ProgrammableEngine]) -> ProgrammableEngine:
    return served[1]


@pytest.fixture
async def session(served: tuple[ServedSessions, ProgrammableEngine]) -> AsyncIterator[ServedSession]:
    """A session with one recorded call, which is still there at the end; then a next call works."""
    endpoint, engine = served
    opened = endpoint.open("e1", Sampling(max_tokens=64), max_calls=999, max_context=4096)
    assert (await post(opened, "chat/completions")).status_code == 200
    recorded = opened.recorder.chunks, opened.recorder.sequences
    yield opened
    assert (opened.recorder.chunks[:1], opened.recorder.sequences[:1]) == recorded
    engine.does = None
    again = endpoint.open("e2", Sampling(), max_calls=1, max_context=4096)
    assert (await post(again, "chat/completions")).status_code == 200
