"""Passes a request on to the worker of a sandbox, and its answer back, as they are.

A client that hangs up ends the request at the worker too, which ends the command that it waits for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import TypeVar

from starlette.responses import Response

from ale_rock.admin.record import Record
from ale_rock.admin.sandbox_lookup import using
from ale_rock.admin.workers import Body, Worker, WorkerFailed
from ale_rock.http.disconnects import ClosingStream
from ale_rock.http.streaming import ONCE, bound_window
from ale_rock.schemas import SERVICE_ERROR, RockError

PIECE = 1 << 20
T = TypeVar("T")


async def ask(
    record: Record, worker: Worker, method: str, path: str, body: Body, headers: dict[str, str], query: str = ""
) -> tuple[int, bytes]:
    """Ask a worker about its sandbox and return the status and body of its answer. Raises `RockError`."""
    where, source = f"/sandboxes/{record.id}/{path}", None
    try:
        with using(record):
            if body is None or isinstance(body, bytes):
                return await worker.ask(method, where, query=query, body=body, headers=headers)
            source = _Source(body)
            async with worker.request(method, where, query=query, body=source.pieces(), headers=headers) as response:
                return response.status, await response.read()
    except WorkerFailed as error:
        if source is not None and source.problem is not None:
            raise source.problem from None  # the client's side broke, not the worker's
        raise _lost(record, error) from None


class _Source:
    """A body that is passed on, and the error if it breaks off."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self.problem: Exception | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        try:
            async for piece in self._body:
                yield piece
        except Exception as error:
            self.problem = error
            raise


async def stream(record: Record, worker: Worker, path: str, query: str = "", command: bytes | None = None) -> Response:
    """Pass on an answer of any length, piece by piece: a file's, or the output of a command, which waits for a client
    that reads slowly. Raises `RockError`."""
    method, headers = ("GET", None) if command is None else ("POST", ONCE)
    async with AsyncExitStack() as stack:
        stack.enter_context(using(record))
        try:
            response = await stack.enter_async_context(
                worker.request(method, f"/sandboxes/{record.id}/{path}", query=query, body=command, headers=headers)
            )
            if command is not None:
                bound_window(response)
            length = response.content_length
            kind = response.headers.get("Content-Type", "application/octet-stream")
            if length is not None and length <= PIECE:
                return Response(await response.read(), response.status, media_type=kind)
        except WorkerFailed as error:
            raise _lost(record, error) from None
        held = stack.pop_all()

        async def pieces() -> AsyncGenerator[bytes, None]:
            async with held:
                async for piece in response.content.iter_chunked(PIECE):
                    yield piece

        size = {} if length is None else {"Content-Length": str(length)}
        return ClosingStream(pieces(), status_code=response.status, headers=size, media_type=kind)


def _lost(record: Record, error: WorkerFailed) -> RockError:
    """Return an error that says what became of the sandbox, since the command has no result."""
    if not record.live and record.reason:
        return RockError(f"The sandbox {record.id} is {record.state}: {record.reason}", SERVICE_ERROR)
    return RockError(str(error), SERVICE_ERROR)
