"""Takes in a file of any size as it arrives and hands it to a sandbox: a small one in memory, a large one on disk.

A large one lies in a file without a name, which vanishes with this process, and is copied from there in pieces. So an
upload takes a bounded amount of memory, and a slow sandbox slows its sender down.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self, cast

from ale.errors import SandboxError
from ale.specs.sandbox import AGENT, Sandbox
from ale.specs.sandbox_protocols import Trees
from ale_rock.http.multipart import FormError, FormReader
from ale_rock.schemas import RockError
from ale_rock.worker.validation import check_path
from ale_sandbox.host.threads import in_thread

IN_MEMORY_BYTES = 4 << 20
MOST_FIELD_BYTES = 64 << 10


class Spool:
    """A file that arrives. `with` removes it."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self.size = 0
        self._buffer = bytearray()
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, data: bytes | memoryview) -> None:
        """Take a piece. Raises `RockError` if the file becomes too large."""
        self.size += len(data)
        if self.size > self.max_bytes:
            raise RockError(f"The file is larger than {self.max_bytes >> 20} MiB, the most that this worker takes.")
        self._buffer += data

    async def settle(self, at: int = IN_MEMORY_BYTES) -> None:
        """Move what has arrived to the disk if it is more than `at` bytes. Raises `OSError`."""
        if len(self._buffer) > at:
            piece, self._buffer = self._buffer, bytearray()
            await in_thread(self._write, piece)

    def _write(self, piece: bytearray) -> None:
        if self._file is None:
            self._file = cast(BinaryIO, tempfile.TemporaryFile(dir=self.folder, buffering=0))  # noqa: SIM115
        view = memoryview(piece)
        while view:
            view = view[self._file.write(view) :]

    async def put(self, sandbox: Sandbox, path: str, user: str = AGENT, mode: int = 0o644) -> None:
        """Write the file into a sandbox. Raises `SandboxError`."""
        if self._file is None:
            await sandbox.upload({path: bytes(self._buffer)}, user=user, mode=mode)
            return
        await self.settle(0)
        if isinstance(sandbox, Trees):
            os.fchmod(self._file.fileno(), mode)
            source = Path(f"/proc/self/fd/{self._file.fileno()}")
            try:
                await sandbox.upload_tree(source, path, user=user)
            except SandboxError as error:
                if str(source) not in str(error):
                    raise
                reason = str(error).rpartition(": ")[2]
                raise SandboxError(f"The sandbox could not write {path}: {reason}") from error
        else:
            self._file.seek(0)
            await sandbox.upload({path: await in_thread(self._file.read)}, user=user, mode=mode)


class UploadForm(FormReader):
    """The form of ROCK's upload: the field `target_path`, and the file. Raises `RockError` if the body is no such
    form."""

    def __init__(self, content_type: str, spool: Spool) -> None:
        with _refusals():
            super().__init__(content_type)
        self.spool = spool
        self.file_name: str | None = None
        """The sender's name of the file; None if the form has no file."""
        self.fields: dict[str, bytearray] = {}
        self._field: bytearray | None = None

    async def read(self, body: AsyncIterator[bytes]) -> None:
        """Read the whole form. Raises `RockError` if it is broken, and `OSError` if the disk cannot take the file."""
        async for chunk in body:
            with _refusals():
                self.feed(chunk)
            await self.spool.settle()
        if not self.complete:
            raise RockError("The form of the upload is cut short.")

    def text(self, name: str) -> str:
        """Return a field."""
        return bytes(self.fields.get(name, b"")).decode("utf-8", "surrogateescape")

    def target(self) -> str:
        """Return the path to write to. Raises `RockError` if the form has no path or no file."""
        if self.file_name is None:
            raise RockError("The upload has no file: the form needs the fields 'file' and 'target_path'.")
        return check_path(self.text("target_path"))

    def begin(self, name: str, file_name: str | None) -> None:
        self._field = None
        if name != "file":
            self._field = self.fields[name] = bytearray()
        elif self.file_name is not None:
            raise RockError("The upload has more than one file; send them one by one.")
        else:
            self.file_name = file_name or ""

    def take(self, data: memoryview) -> None:
        if self._field is None:
            self.spool.add(data)
        elif len(self._field) + len(data) > MOST_FIELD_BYTES:
            raise RockError(f"A field of the upload's form is longer than {MOST_FIELD_BYTES} bytes.")
        else:
            self._field += data


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except FormError as error:
        raise RockError(str(error)) from None
