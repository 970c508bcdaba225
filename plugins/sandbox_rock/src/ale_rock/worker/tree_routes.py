"""ALE's own routes that copy trees of files into a sandbox and out of it.

A tree is the pieces that sandboxes exchange with their providers (`ale_sandbox.host.tree_transfers`), each a frame.
Both ends check them, so they pass through here unchecked, and a tree of any size takes the memory of a few pieces.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack

from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ale.errors import AleError
from ale.specs.sandbox import AGENT
from ale.specs.sandbox_protocols import Trees, lacks
from ale_rock.http.disconnects import ClosingStream
from ale_rock.http.streaming import FAULT, PIECE, frame, read_frames
from ale_rock.schemas import Fault, RockError
from ale_rock.worker.responses import EXPECTED, fault_of, json_response, query
from ale_rock.worker.service import WorkerService
from ale_rock.worker.validation import check_path, check_user, readable
from ale_sandbox.host.channel import Channel
from ale_sandbox.host.commands import as_bytes
from ale_sandbox.host.tree_transfers import Transfer, found
from ale_sandbox.resident.frames import TREE, pack, unpack
from ale_sandbox.sandboxes.sandbox import ResidentSandbox


class TreeRoutes:
    """The routes of one worker."""

    def __init__(self, service: WorkerService) -> None:
        self.service = service
        self.routes = [
            Route("/sandboxes/{id}/tree", self.put, methods=["PUT"]),
            Route("/sandboxes/{id}/tree", self.get, methods=["GET"]),
        ]

    def channel(self, request: Request) -> Channel:
        """Return the connection to the sandbox that a request names. Raises `PluginError` and `SandboxError`."""
        sandbox = self.service.find(request.path_params["id"]).sandbox
        if not isinstance(sandbox, ResidentSandbox):
            raise lacks(sandbox, Trees)
        return sandbox.channel

    async def put(self, request: Request) -> Response:
        """Take a tree in: the body is its pieces."""
        body = request.stream()
        try:
            channel, asked = self.channel(request), query(request)
            head = [b"in", as_bytes(check_path(asked.get("path", ""))), check_user(asked.get("user", AGENT)).encode()]
            async with Transfer(channel) as transfer:
                channel.journal.record_request(transfer.number, TREE, head)
                await transfer.answer(transfer.ask(*head))
                await transfer.deliver(pieces_in(body))
        except ClientDisconnect:
            raise
        except OSError as error:
            await drain(body)
            return fault_of(RockError(error.strerror or str(error)))
        except EXPECTED as error:
            await drain(body)
            return fault_of(error)
        return json_response({})

    async def get(self, request: Request) -> Response:
        """Hand a tree out, piece by piece."""
        try:
            channel, path = self.channel(request), check_path(query(request).get("path", ""))
            async with AsyncExitStack() as stack:
                transfer = await stack.enter_async_context(Transfer(channel))
                channel.journal.record_request(transfer.number, TREE, [b"out", as_bytes(path), b"agent"])
                if not await found(transfer, as_bytes(path)):
                    return json_response({"detail": f"There is no {readable(path)}.", "kind": "missing"}, 404)
                return ClosingStream(pieces_out(transfer, stack.pop_all()), media_type="application/octet-stream")
        except OSError as error:
            return fault_of(RockError(error.strerror or str(error)))
        except EXPECTED as error:
            return fault_of(error)


async def pieces_in(body: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the pieces of a body. Raises `RockError` if the body is not a tree."""
    try:
        async for kind, data in read_frames(body):
            if kind != PIECE:
                raise ValueError(f"a frame {kind!r} is no piece of a tree")
            yield unpack(data)
    except ValueError as error:
        raise RockError(f"The body of the request is no tree: {error}.") from None


async def pieces_out(transfer: Transfer, held: AsyncExitStack) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a tree, and what went wrong, if anything."""
    async with held:
        try:
            async for fields in transfer.pieces():
                yield frame(PIECE, pack(fields))
        except (AleError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            yield frame(FAULT, to_json(Fault(detail=readable(reason))))


async def drain(body: AsyncIterator[bytes]) -> None:
    """Read the rest of a body, because a client that is still sending does not read the answer."""
    async for _ in body:
        pass
