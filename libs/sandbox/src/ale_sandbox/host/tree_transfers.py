"""Moves trees of files in and out of a sandbox, the host's side; `resident/trees/transfers.py` is the other side.

1. A tree is sent in pieces of a bounded size; a few are sent while another one is read or written in a thread. So a
   tree of any size takes the memory of a few pieces on either side, and a slow disk slows the other side down.
2. A tree of the host is checked before anything is sent; one with forbidden entries is refused.
3. A tree from a sandbox is treated as an attacker's work. It is written beside its target under a temporary name
   (`tree_writer.py` makes sure that nothing is written elsewhere), and gets its own name when it is complete and its
   links have been checked; in every other case it is removed.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Self

from ale.errors import SandboxError
from ale_sandbox.host.channel import Channel
from ale_sandbox.host.journal import printable
from ale_sandbox.host.owned_folders import remove_folder
from ale_sandbox.host.threads import in_thread
from ale_sandbox.host.tree_links import check_links
from ale_sandbox.resident.frames import CANCEL, DATA, DONE, FAILED, TREE, frame, unpack
from ale_sandbox.resident.trees.tree_reader import LINK, REFUSED, InvalidTree, Reader, quote
from ale_sandbox.resident.trees.tree_writer import Writer

ANSWER_S = 60.0
"""A resident that is silent for this long counts as dead."""
WINDOW = 3
"""How many pieces may be sent and not yet answered."""
MAX_ANSWER_BYTES = 16 << 20
"""A longer answer can only come from a resident that an attacker controls."""
STEPS = 1000


class Transfer:
    """A call of many frames; each frame sent (`ask`) has one answer. Leaving it early makes the resident drop it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.number = channel.number()
        self.over = False
        self._asked: deque[asyncio.Future[tuple[bytes, bytes]]] = deque()
        self._closing = asyncio.ensure_future(channel.closed.wait())
        channel.relays[self.number] = self._take

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.channel.relays.pop(self.number, None)
        self._closing.cancel()
        if not self.over:
            self.channel.send(self.number, CANCEL)

    def ask(self, *fields: bytes) -> asyncio.Future[tuple[bytes, bytes]]:
        """Send a frame."""
        answer: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        self.channel.write(frame(self.number, TREE, list(fields)))
        return answer

    def _take(self, kind: bytes, payload: bytes) -> None:
        if self.over:
            return  # the answer to a frame that was sent before the end was known
        if not self._asked or len(payload) > MAX_ANSWER_BYTES:
            self.channel.close("its resident process sent an answer that nobody asked for")
            return
        self.over = kind != DATA
        answer = self._asked.popleft()
        if not answer.done():
            answer.set_result((kind, payload))

    async def answer(self, asked: asyncio.Future[tuple[bytes, bytes]]) -> list[bytes]:
        """Wait for an answer. Raises `OSError` if the resident could not do it, `SandboxError` if it is gone."""
        await asyncio.wait((asked, self._closing), timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            self.channel.close(f"its resident process did not answer within {ANSWER_S:.0f} s")
            raise self.channel.error()
        kind, payload = asked.result()
        try:
            fields = unpack(payload)
            if kind in (DATA, DONE):
                return fields
            code, reason = int(fields[0]), printable(fields[1].decode("utf-8", "replace"))[:1000]
        except (ValueError, IndexError):
            kind = b""
        if kind != FAILED:
            self.channel.close("its resident process sent an invalid answer")
            raise self.channel.error()
        raise OSError(code, reason)

    async def pieces(self) -> AsyncGenerator[list[bytes], None]:
        """Yield the pieces of a tree from the sandbox; the next ones are fetched while one is used."""
        asked = deque(self.ask(b"more") for _ in range(WINDOW))
        while asked:
            yield await self.answer(asked.popleft())
            if not self.over:
                asked.append(self.ask(b"more"))
            else:
                asked = deque(answer for answer in asked if answer.done())

    async def deliver(self, pieces: AsyncIterable[list[bytes]]) -> None:
        """Send the pieces of a tree into the sandbox."""
        asked: deque[asyncio.Future[tuple[bytes, bytes]]] = deque()
        async for fields in pieces:
            if len(asked) == WINDOW:
                await self.answer(asked.popleft())
            asked.append(self.ask(b"piece", *fields))
        while asked:
            await self.answer(asked.popleft())
        while not self.over:
            await self.answer(self.ask(b"end"))


async def read_pieces(read: Callable[[], tuple[list[bytes], bool]]) -> AsyncGenerator[list[bytes], None]:
    """Yield the pieces of a tree; `read`, run in a thread, returns the next one and if it is the last."""
    last = False
    while not last:
        fields, last = await in_thread(read)
        yield fields


class TreeSource:
    """A tree of the host, which is checked before it is read."""

    def __init__(self, path: Path) -> None:
        self.root = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.links: dict[bytes, bytes] = {}
        self.reader = Reader(os.dup(self.root), contents=False)

    async def check(self) -> None:
        """Refuse forbidden entries. Raises `OSError` that names the entry."""
        last = False
        while not last:
            fields, last = await in_thread(self.reader.piece)
            for kind, name, _, target in zip(*(fields[i::4] for i in range(4)), strict=True):
                if kind == LINK:
                    self.links[name] = target
                elif kind == REFUSED:
                    what = f"{quote(name)} in it is" if name else "it is"
                    raise InvalidTree(f"{what} a {target.decode()}, which a tree must not hold")
        await in_thread(check_links, self.links)
        self.reader.close()
        self.reader = Reader(os.dup(self.root))

    def piece(self) -> tuple[list[bytes], bool]:
        """Return the next piece. Refuses a link that is new or changed since the check."""
        fields, last = self.reader.piece()
        for kind, name, _, target in zip(*(fields[i::4] for i in range(4)), strict=True):
            if kind == REFUSED or (kind == LINK and self.links.get(name) != target):
                raise InvalidTree(f"{quote(name)} was changed while the tree was read")
        return fields, last

    def close(self) -> None:
        """Close the tree's files."""
        self.reader.close()
        os.close(self.root)


@contextmanager
def as_sandbox_error(what: str) -> Iterator[None]:
    """Turn failures into a `SandboxError` that begins with `what`."""
    try:
        yield
    except OSError as error:
        raise SandboxError(f"{what}: {error.strerror or error}.") from error


class TemporaryTree:
    """Where a tree is written until it is complete: beside its target, under a temporary name."""

    def __init__(self, target: Path) -> None:
        if b"\0" in os.fsencode(target):
            raise ValueError("embedded null byte")
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "a tree can only be downloaded to a path where nothing is", str(target))
        self.target = target
        self.folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.base = f".ale-{token_hex(8)}"

    def take_name(self) -> None:
        """Give the complete tree its own name."""
        if os.path.lexists(self.target):
            raise InvalidTree(f"something else was put at {self.target} during the download")
        os.rename(self.base, self.target.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)

    def close(self) -> None:
        """Remove an incomplete tree."""
        try:
            os.unlink(self.base, dir_fd=self.folder)
        except IsADirectoryError:
            remove_folder(Path(f"/proc/self/fd/{self.folder}/{self.base}"))
        except FileNotFoundError:
            pass
        finally:
            os.close(self.folder)


def open_tree(source: Path, what: str) -> TreeSource:
    """Open a tree of the host. Raises `FileNotFoundError`, and `SandboxError`, which begins with `what`."""
    try:
        return TreeSource(source)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SandboxError(f"{what}: {error.strerror}.") from error
    except ValueError as error:  # a NUL byte, or half a character
        raise SandboxError(f"{what}: {str(source)!r} is no path ({error}).") from None


async def land(
    what: str, source: str, target: Path, max_bytes: int, fetch: Callable[[Writer], Awaitable[bool]]
) -> None:
    """Put a tree from a sandbox at `target` of the host, whole or not at all. `fetch` writes all but its links, and
    says whether there is such a tree. Raises `FileNotFoundError`, and `SandboxError`, which begins with `what`."""
    try:
        landing = TemporaryTree(target)
    except ValueError as error:  # a NUL byte, or half a character
        raise SandboxError(f"{what}: {str(target)!r} is no path ({error}).") from None
    writer = Writer(os.dup(landing.folder), os.fsencode(landing.base), max_bytes=max_bytes)
    try:
        with as_sandbox_error(what), closing(writer):
            there = await fetch(writer)
            if there:
                await in_thread(check_links, {name: entry.target for name, entry in writer.links.items()})
                await finish(writer)
        if not there:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        with as_sandbox_error(what):
            landing.take_name()
    except BaseException:
        await in_thread(landing.close)
        raise
    landing.close()  # not awaited: a caller that cancels after the tree has its name would find it there


async def upload(channel: Channel, source: Path, target: bytes, user: str) -> None:
    what = f"The tree {source} cannot be put into the sandbox {channel.sandbox_id}"
    tree = open_tree(source, what)
    with as_sandbox_error(what), closing(tree):
        await tree.check()
        async with Transfer(channel) as transfer:
            channel.journal.record_request(transfer.number, TREE, [b"in", target, user.encode()])
            await transfer.answer(transfer.ask(b"in", target, user.encode()))
            await transfer.deliver(read_pieces(tree.piece))


async def download(channel: Channel, source: bytes, target: Path, max_bytes: int) -> None:

    async def fetch(writer: Writer) -> bool:
        async with Transfer(channel) as transfer:
            channel.journal.record_request(transfer.number, TREE, [b"out", source, b"agent"])
            there = await found(transfer, source)
            if there:
                await receive(transfer, writer)
            return there

    name = os.fsdecode(source)
    what = f"The tree {name} of the sandbox {channel.sandbox_id} was not downloaded"
    await land(what, name, target, max_bytes, fetch)


async def found(transfer: Transfer, source: bytes) -> bool:
    """Ask for a tree of the sandbox; return whether there is one."""
    try:
        await transfer.answer(transfer.ask(b"out", source, b"agent"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


async def receive(transfer: Transfer, writer: Writer) -> None:
    """Write a tree from the sandbox, all but its links."""
    ended = False
    async with aclosing(transfer.pieces()) as pieces:
        async for fields in pieces:
            ended = await in_thread(writer.take, fields)
            if ended:
                break
    if not ended:
        raise InvalidTree("the tree is cut short")


async def finish(writer: Writer) -> None:
    """Make a tree's links in a thread, a few at a time, so that it can be cancelled in between."""
    steps = writer.finish()

    def make_some() -> bool:
        return any(next(steps, writer) is writer for _ in range(STEPS))

    while not await in_thread(make_some):
        pass
