"""Copies trees of files to a sandbox of a ROCK service and back.

They are sent as the pieces that sandboxes exchange with their providers (`ale_sandbox.host.tree_transfers`), each in a
frame. A tree of the host is checked before anything is sent. A tree from a sandbox is not trusted, as in a local
provider.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

from ale.errors import ConfigError, SandboxError
from ale_rock.client.sandbox import RockSandbox
from ale_rock.client.service_client import Missing
from ale_rock.http.streaming import FAULT, PIECE, frame, read_frames
from ale_sandbox.host.threads import in_thread
from ale_sandbox.host.tree_transfers import TreeSource, as_sandbox_error, land, open_tree
from ale_sandbox.resident.frames import pack, unpack
from ale_sandbox.resident.trees.tree_reader import InvalidTree
from ale_sandbox.resident.trees.tree_writer import Writer

PIECE_S = 300.0
"""How long a piece of an answer may take. The answer to an upload comes when the sandbox has written the tree."""


async def upload(box: RockSandbox, source: Path, target: str, user: str) -> None:
    what = f"The tree {source} cannot be put into the sandbox {box.id}"
    tree = open_tree(source, what)
    body = _Body(tree)
    with as_sandbox_error(what):
        try:
            await tree.check()
            query = {"path": target, "user": user}
            async with box.client.request("PUT", f"{box.path}/tree", body.frames(), PIECE_S, query) as response:
                await response.read()
        except (ConfigError, SandboxError) as error:
            if body.problem is not None:  # reading the tree failed, not the service
                raise body.problem from None
            raise SandboxError(f"{what}: {error}") from None
        finally:
            await body.close()


class _Body:
    """The body of an upload. The HTTP client reads it in a task of its own, which may outlive the request."""

    def __init__(self, tree: TreeSource) -> None:
        self._tree, self._closed = tree, False
        self._reading = asyncio.Lock()
        self.problem: OSError | None = None
        """Why the tree could not be read."""

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the tree."""
        last = False
        while not last:
            async with self._reading:
                if self._closed:
                    raise ConnectionAbortedError("the upload has ended")  # never as if the tree were complete
                try:
                    fields, last = await in_thread(self._tree.piece)
                except OSError as error:
                    self.problem = error
                    raise
            yield frame(PIECE, pack(fields))

    async def close(self) -> None:
        """Close the tree once it is no longer being read."""
        async with self._reading:
            self._closed = True
            self._tree.close()


async def download(box: RockSandbox, source: str, target: Path, max_bytes: int) -> None:
    what = f"The tree {source} of the sandbox {box.id} was not downloaded"
    await land(what, source, target, max_bytes, lambda writer: _receive(box, source, writer))


async def _receive(box: RockSandbox, source: str, writer: Writer) -> bool:
    """Write the pieces of a tree, except for its links; return whether there is such a tree."""
    try:
        async with box.client.request("GET", f"{box.path}/tree", None, PIECE_S, {"path": source}) as response:
            async with aclosing(read_frames(response.content.iter_any())) as frames:
                async for kind, data in frames:
                    if kind == FAULT:
                        raise InvalidTree(json.loads(data)["detail"])
                    if kind == PIECE and await in_thread(writer.take, unpack(data)):
                        return True
            raise InvalidTree("the tree is cut short")
    except Missing as error:
        if error.what != "missing":
            raise
        return False
    except ValueError as error:
        raise InvalidTree(str(error)) from None
