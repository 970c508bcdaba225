"""Sessions that are served over HTTP from their opening on, for tests."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, cast

from ale.registry.hooks import Hooks
from ale.session.session import RecordedSession, Sessions
from ale.session.tokenizer import ChatTokenizer
from ale.specs.engine import InferenceEngine, Sampling
from ale_endpoint.session_server import SessionServer
from ale_testing.fake_engines import TOKENIZER, ProgrammableEngine


class ServedSession(RecordedSession):
    """A session that knows how it is reached."""

    base_url: str
    api_key: str


class ServedSessions(Sessions):
    """Every session that is opened is served while this context lasts."""

    def __init__(
        self, tokenizer: ChatTokenizer, engine: InferenceEngine, hooks: Hooks, unix: Path | None = None
    ) -> None:
        super().__init__(tokenizer, engine, hooks)
        self.server = SessionServer(unix)
        self._keys: dict[str, ExitStack] = {}

    async def __aenter__(self) -> Self:
        await self.server.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for keys in self._keys.values():
            keys.close()
        await self.server.__aexit__(*exc)

    def open(self, session_id: str, sampling: Sampling, **bounds: Any) -> ServedSession:
        """A session with its URL and key."""
        session = super().open(session_id, sampling, **bounds)
        access = self._keys.setdefault(session_id, ExitStack()).enter_context(self.server.open(session))
        vars(session).update(base_url=access.base_url, api_key=access.api_key)
        return cast(ServedSession, session)

    def close(self, session: RecordedSession) -> None:
        """End a session as the end of its episode does."""
        session.close()
        self._keys[session.id].close()


def pliable_endpoint() -> tuple[ServedSessions, ProgrammableEngine]:
    """Sessions that nothing serves yet, and their engine."""
    engine = ProgrammableEngine()
    return ServedSessions(TOKENIZER, engine, Hooks()), engine
