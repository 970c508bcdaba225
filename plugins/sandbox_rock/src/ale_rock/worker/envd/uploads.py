"""Files that E2B's SDK writes: one as the body of a request, or several in a form. Each goes into the sandbox as it
arrives, so no more than one waits here."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request

from ale.specs.sandbox import Sandbox
from ale_rock.http.multipart import FormError, FormReader
from ale_rock.schemas import RockError
from ale_rock.worker.envd.folders import absolute
from ale_rock.worker.settings import WorkerSettings
from ale_rock.worker.spool import Spool

PIECE_BYTES = 1 << 20
Written = dict[str, Any]


async def write_files(request: Request, sandbox: Sandbox, path: str, settings: WorkerSettings) -> list[Written]:
    """Write the files of a request, the only one of them to `path` if that is given. Raises `ConnectError`,
    `RockError` or `SandboxError`."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() == "multipart/form-data":
        with ExitStack() as stack:
            form = _Form(kind, settings, stack)
            return await form.write(request.stream(), sandbox, path)
    with Spool(settings.spool_folder, settings.max_file_bytes) as spool:
        async for piece in _unpacked(request):
            spool.add(piece)
            await spool.settle()
        return [await _put(sandbox, spool, absolute(sandbox, path))]


async def _put(sandbox: Sandbox, spool: Spool, path: str) -> Written:
    await spool.put(sandbox, path)
    return {"name": path.rpartition("/")[2], "type": "file", "path": path}


async def _unpacked(request: Request) -> AsyncIterator[bytes]:
    """Yield the body, unpacked if it is compressed. Raises `RockError`."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "identity":
        async for piece in request.stream():
            yield piece
        return
    if encoding != "gzip":
        raise RockError(f"A file comes as it is or compressed by gzip, and not by {encoding[:100]!r}.")
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        async for piece in request.stream():
            while piece:
                yield unpacker.decompress(piece, PIECE_BYTES)
                piece = unpacker.unconsumed_tail
    except zlib.error as error:
        raise RockError(f"The body is no gzip: {error}.") from None
    if not unpacker.eof:
        raise RockError("The compressed body is cut short.")


class _Form(FormReader):
    """A form with files, whose names are their paths."""

    most_parts = 10_000

    def __init__(self, content_type: str, settings: WorkerSettings, stack: ExitStack) -> None:
        try:
            super().__init__(content_type)
        except FormError as error:
            raise RockError(str(error)) from None
        self._settings, self._stack = settings, stack
        self._current: tuple[str, Spool] | None = None
        self._arrived: list[tuple[str, Spool]] = []

    async def write(self, body: AsyncIterator[bytes], sandbox: Sandbox, path: str) -> list[Written]:
        """Write each file once it has arrived."""
        written: list[Written] = []
        async for chunk in body:
            try:
                self.feed(chunk)
            except FormError as error:
                raise RockError(str(error)) from None
            arrived, self._arrived = self._arrived, []
            for name, spool in arrived:
                with spool:
                    written.append(await _put(sandbox, spool, absolute(sandbox, path or name)))
            if self._current is not None:
                await self._current[1].settle()
        if not self.complete:
            raise RockError("The form of the upload is cut short.")
        if not written:
            raise RockError("The upload has no file: the form needs a field 'file' for each.")
        return written

    def begin(self, name: str, file_name: str | None) -> None:
        self._current = None
        if name == "file":
            spool = Spool(self._settings.spool_folder, self._settings.max_file_bytes)
            self._current = file_name or "", self._stack.enter_context(spool)

    def take(self, data: memoryview) -> None:
        if self._current is not None:
            self._current[1].add(data)

    def end(self) -> None:
        if self._current is not None:
            self._arrived.append(self._current)
            self._current = None
