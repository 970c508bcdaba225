"""Finds the field `sandbox_id` in a form while it arrives, so that a file of any size passes through and is not kept.

Clients send fields before files. The data before the field is kept in memory up to a bound. A form whose file is larger
and comes first is refused, since its sandbox is not known yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic import ValidationError

from ale_rock.http.multipart import FormError, FormReader
from ale_rock.schemas import RockError, SandboxRef

MOST_BEFORE = 8 << 20
LONGEST = 256


async def sandbox_of_form(content_type: str, stream: AsyncIterator[bytes]) -> tuple[str, AsyncIterator[bytes]]:
    """Return the sandbox that a form names, and the form's whole body. Raises `RockError`."""
    read, rest = bytearray(), aiter(stream)
    try:
        finder = _Finder(content_type)
        async for piece in rest:
            read += piece
            finder.feed(piece)
            if finder.found is not None:
                return SandboxRef(sandbox_id=finder.found).sandbox_id, _whole(bytes(read), rest)
            if len(read) > MOST_BEFORE:
                raise RockError(
                    f"The first {MOST_BEFORE >> 20} MiB of the form have no field sandbox_id; send it before the file."
                )
    except ValidationError:
        raise RockError("The field sandbox_id of the form is no id of a sandbox.") from None
    except (FormError, UnicodeDecodeError) as error:
        raise RockError(str(error)) from None
    raise RockError("The form has no field sandbox_id.")


async def _whole(read: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield read
    async for piece in rest:
        if piece:
            yield piece


class _Finder(FormReader):
    """Reads a form up to the end of its field `sandbox_id`."""

    def __init__(self, content_type: str) -> None:
        super().__init__(content_type)
        self.found: str | None = None
        self._data: bytes | None = None

    def begin(self, name: str, file_name: str | None) -> None:
        self._data = b"" if name == "sandbox_id" and file_name is None else None

    def take(self, data: memoryview) -> None:
        if self._data is not None and len(self._data) <= LONGEST:
            self._data += bytes(data)

    def end(self) -> None:
        if self._data is not None and self.found is None:
            self.found = self._data.decode()
