"""A resident in an attacker's hands sends trees: nothing is written outside the target, and the target is not there."""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.errors import SandboxError
from ale_sandbox.host import tree_links as links
from ale_sandbox.host import tree_transfers as transfers
from ale_sandbox.host.owned_folders import remove_folder
from ale_sandbox.resident.frames import CANCEL, DONE, frame
from ale_sandbox.resident.trees import tree_writer
from ale_sandbox.resident.trees.tree_reader import DATA, PIPE, REFUSED

from .fake_resident import END_RECORD, FACTS, Piece, fake_resident, file, folder, link


def entries(folder: Path) -> list[str]:
    """All that is below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


async def until(comes_true: Callable[[], object]) -> None:
    """Wait for something of the other end's."""
    for _ in range(2000):
        if comes_true():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


DEEP = b"/".join([b"d"] * 250)
HOSTILE: dict[str, tuple[Piece, str]] = {
    "an absolute name": (file(b"/tmp/ale-evil"), "no path within a tree"),
    "a name that climbs": (file(b"../evil"), "no path within a tree"),
    "a name that climbs later": (folder(b"a") + file(b"a/../../evil"), "no path within a tree"),
    "a name with an empty part": (file(b"a//evil"), "no path within a tree"),
    "a name that is a dot": (file(b"./evil"), "no path within a tree"),
    "a name with a NUL": (file(b"ev\0il"), "no path within a tree"),
    "a name that is too long": (file(b"n" * 4000), "too long"),
    "a name that is too deep": (file(DEEP), "lies too deep"),
    "a part that no file system takes": (file(b"n" * 300), "cannot be written"),
    "a file through a link": (link(b"l", b"OUTSIDE") + file(b"l/evil"), "'l/evil' cannot be written"),
    "a folder through a link": (link(b"l", b"OUTSIDE") + folder(b"l/evil"), "'l/evil' cannot be written"),
    "a link through a link": (link(b"l", b".") + link(b"l/evil", b"x"), "'l/evil' cannot be written"),
    "a link to the outside": (link(b"l", b"OUTSIDE"), "leads out of the tree"),
    "a link upwards": (folder(b"a") + link(b"a/l", b"../../evil"), "leads out of the tree"),
    "a link out through another one": (
        folder(b"d") + link(b"x", b"d/up/../evil") + link(b"d/up", b".."),
        "'x' leads out of the tree",
    ),
    "a link out through one that is absolute": (link(b"a", b"b/x") + link(b"b", b"/etc"), "leads out of the tree"),
    "links in a circle": (link(b"a", b"b") + link(b"b", b"a"), "in a circle"),
    "a link to nothing": (link(b"l", b""), "of an unknown kind"),
    "a device": ([REFUSED, b"null", FACTS % 0, b"device"], "'null' is a 'device'"),
    "a pipe": ([PIPE, b"p", FACTS % 0, b""], "of an unknown kind"),
    "an unknown kind": ([b"c", b"null", FACTS % 0, b""], "of an unknown kind"),
    "a file twice": (file(b"a") + file(b"a"), "'a' cannot be written: it comes twice"),
    "a folder twice": (folder(b"a") + folder(b"a"), "it comes twice"),
    "a link twice": (link(b"a", b"x") + link(b"a", b"y"), "'a' comes twice"),
    "a link in the place of a folder": (folder(b"a") + file(b"a/f") + link(b"a", b"b"), "it comes twice"),
    "a second root": (folder(b""), "or is a second one"),
    "a file before its folder": (file(b"a/b"), "'a/b' cannot be written"),
    "a file in a file": (file(b"a") + file(b"a/b"), "'a/b' cannot be written"),
    "a file over the limit": (file(b"big", b"", size=2001), "larger than 2000 bytes"),
    "files over the limit together": (file(b"a", b"", size=1500) + file(b"b", b"", size=501), "larger than 2000"),
    "more content than the record says": (file(b"a", b"12345", size=4), "'a' holds more than its record says"),
    "content beyond the end": ([*file(b"a", b"", size=4), DATA, b"3", b"xy", b""], "holds more than its record says"),
    "content that goes back": ([*file(b"a", b"12", size=9), DATA, b"1", b"y", b""], "holds more than its record says"),
    "content at no offset": ([*file(b"a", b"", size=4), DATA, b"-1", b"x", b""], "holds more than its record says"),
    "content of a folder": ([*folder(b"a"), DATA, b"0", b"x", b""], "content comes without a file"),
    "facts that are words": ([b"f", b"a", b"rwx now 1 me", b""], "make no sense"),
    "a mode that there is not": ([b"f", b"a", b"65536 0 0 0", b""], "make no sense"),
    "a negative size": ([b"f", b"a", b"420 0 -1 0", b""], "make no sense"),
    "a time beyond all times": ([b"f", b"a", b"420 9000000000000000000 0 0", b""], "make no sense"),
    "half a record": ([b"f", b"a", b"420 0 0 0"], "is cut short"),
    "something after the end": (END_RECORD + file(b"a"), "after the tree's end"),
}


@pytest.mark.parametrize("what", HOSTILE, ids=lambda what: what.replace(" ", "-"))
async def test_a_tree_that_must_not_be_leaves_nothing(what: str, tmp_path: Path) -> None:
    records, sentence = HOSTILE[what]
    outside, place = tmp_path / "outside", tmp_path / "place"
    outside.mkdir()
    place.mkdir()
    (tmp_path / "kept").write_text("kept")
    records = [field.replace(b"OUTSIDE", os.fsencode(outside)) for field in records]
    async with fake_resident([folder() + records + ([] if records[:4] == END_RECORD else END_RECORD)]) as (channel, _):
        with pytest.raises(SandboxError, match=r"The tree src of the sandbox fake was not downloaded: ") as caught:
            await transfers.download(channel, b"src", place / "target", 2000)
    assert sentence in str(caught.value)
    assert entries(tmp_path) == ["kept", "outside", "place"]
    assert "ale-evil" not in os.listdir("/tmp")


@pytest.mark.parametrize(
    "root", [link(b"", b"/etc"), [PIPE, b"", FACTS % 0, b""], file(b"a"), END_RECORD, [DATA, b"0", b"x", b""]]
)
async def test_a_root_is_a_folder_or_a_file(root: Piece, tmp_path: Path) -> None:
    async with fake_resident([root + END_RECORD]) as (channel, _):
        with pytest.raises(SandboxError, match="was not downloaded"):
            await transfers.download(channel, b"src", tmp_path / "target", 2000)
    assert os.listdir(tmp_path) == []


async def test_a_tree_without_an_end_is_no_tree(tmp_path: Path) -> None:
    async with fake_resident([folder() + file(b"a")]) as (channel, _):
        with pytest.raises(SandboxError, match="the tree is cut short"):
            await transfers.download(channel, b"src", tmp_path / "target", 2000)
    assert os.listdir(tmp_path) == []


async def test_a_resident_that_dies_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async with fake_resident([folder() + file(b"a", b"x", size=1000)], ends=False) as (channel, _):
        download = asyncio.ensure_future(transfers.download(channel, b"src", tmp_path / "target", 2000))
        await until(lambda: os.listdir(tmp_path))
        channel.close("the machine went down")
        with pytest.raises(SandboxError, match="is gone: the machine went down"):
            await download
    assert os.listdir(tmp_path) == []


async def test_a_resident_that_falls_silent_counts_as_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "ANSWER_S", 0.2)
    async with fake_resident([folder()], ends=False) as (channel, _):
        with pytest.raises(SandboxError, match="did not answer within"):
            await transfers.download(channel, b"src", tmp_path / "target", 2000)
    assert os.listdir(tmp_path) == []


async def test_a_cancelled_download_leaves_nothing_and_says_so_inside(tmp_path: Path) -> None:
    async with fake_resident([folder() + file(b"a", b"x", size=1000)], ends=False) as (channel, asked):
        download = asyncio.ensure_future(transfers.download(channel, b"src", tmp_path / "target", 2000))
        await until(lambda: os.listdir(tmp_path))
        download.cancel()
        with pytest.raises(asyncio.CancelledError):
            await download
        assert os.listdir(tmp_path) == []
        await until(lambda: CANCEL in asked)
        assert not channel.busy


@pytest.mark.parametrize(
    ("limit", "piece", "sentence"),
    [
        ("MAX_ENTRIES", file(b"f%d", b""), "more than 50 entries"),
        ("MAX_ENTRIES", [], "has no end"),
        ("MAX_REMEMBERED_BYTES", folder(b"f%d"), "too many folders and links"),
        ("MAX_REMEMBERED_BYTES", link(b"f%d", b"x"), "too many folders and links"),
    ],
)
async def test_a_tree_without_bounds_is_refused(
    limit: str, piece: Piece, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_writer, limit, 50)
    endless = ([field.replace(b"%d", b"%d" % n) for field in piece] for n in itertools.count())
    async with fake_resident(itertools.chain([folder()], endless)) as (channel, _):
        with pytest.raises(SandboxError, match=sentence):
            await transfers.download(channel, b"src", tmp_path / "target", 2000)
    assert os.listdir(tmp_path) == []


async def test_links_that_take_too_long_to_look_at_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_STEPS", 1000)
    chain = [field for n in range(30) for field in link(b"l%d" % n, b"./" * 50 + b"l%d" % (n + 1))]
    async with fake_resident([folder() + chain + END_RECORD]) as (channel, _):
        with pytest.raises(SandboxError, match="lead through one another too often"):
            await transfers.download(channel, b"src", tmp_path / "target", 2000)
    assert os.listdir(tmp_path) == []


async def test_answers_that_nobody_asked_for_end_the_connection(tmp_path: Path) -> None:
    async with fake_resident([], ends=False) as (channel, _):
        async with transfers.Transfer(channel) as transfer:
            for _ in range(2):
                channel.data_received(frame(transfer.number, DONE, []))
            await asyncio.wait_for(channel.closed.wait(), 10)
        assert "sent an answer that nobody asked for" in str(channel.error())


async def test_bits_that_give_rights_away_are_dropped_and_owners_are_the_hosts(tmp_path: Path) -> None:
    pieces = [folder(mode=0o7775), file(b"a", mode=0o6755), folder(b"d", mode=0o1777), END_RECORD]
    async with fake_resident(pieces) as (channel, _):
        await transfers.download(channel, b"src", tmp_path / "target", 2000)
    target = tmp_path / "target"
    assert [stat.S_IMODE(p.lstat().st_mode) for p in (target, target / "a", target / "d")] == [0o775, 0o755, 0o777]
    assert {p.lstat().st_uid for p in (target, target / "a", target / "d")} == {os.getuid()}
    assert (target / "a").stat().st_mtime == 1_700_000_000
    assert os.listdir(tmp_path) == ["target"]


async def test_links_may_lead_anywhere_inside(tmp_path: Path) -> None:
    inside = (
        folder(b"d") + link(b"d/up", b"..") + link(b"d/self", b"./up/d/../f") + link(b"gone", b"d/none/x") + file(b"f")
    )
    async with fake_resident([folder() + inside + END_RECORD]) as (channel, _):
        await transfers.download(channel, b"src", tmp_path / "target", 2000)
    assert (tmp_path / "target/d/self").read_text() == "x"
    assert os.readlink(tmp_path / "target/gone") == "d/none/x"


async def test_what_is_at_the_target_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    async with fake_resident([folder() + END_RECORD]) as (channel, asked):
        for name in ("file", "link"):
            with pytest.raises(FileExistsError):
                await transfers.download(channel, b"src", tmp_path / name, 2000)
        with pytest.raises(FileNotFoundError):
            await transfers.download(channel, b"src", tmp_path / "no/folder", 2000)
        assert asked == []
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


# -- the writer itself, as snapshots use it too

PARTS = st.sampled_from([b"..", b".", b"", b"a", b"b", b"l", b"outside", b"a\0b"])
PATHS = st.lists(PARTS, max_size=4).map(b"/".join)
RECORDS = st.one_of(
    PATHS.map(folder),
    PATHS.map(file),
    st.tuples(PATHS, st.one_of(PATHS, st.sampled_from([b"/etc", b"../outside", b"/", b"../outside/kept"]))).map(
        lambda both: link(*both)
    ),
    PATHS.map(lambda name: [PIPE, name, FACTS % 0, b""]),
    st.tuples(st.integers(-5, 20), st.binary(max_size=5)).map(lambda both: [DATA, b"%d" % both[0], both[1], b""]),
    st.lists(st.binary(max_size=9), min_size=4, max_size=4),
)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("merge", [False, True])
def test_whatever_is_sent_nothing_is_written_beside_the_root(whole: bool, merge: bool, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    before = outside.stat().st_mtime_ns, (outside / "kept").stat().st_mtime_ns

    @settings(max_examples=300, deadline=None, database=None)
    @given(records=st.lists(RECORDS, max_size=12))
    def write(records: list[Piece]) -> None:
        parent = os.open(tmp_path, os.O_RDONLY)
        writer = tree_writer.Writer(parent, b"root", merge=merge, whole=whole, max_bytes=100)
        try:
            writer.take([*folder(), *(field for record in records for field in record), *END_RECORD])
            list(writer.finish())
        except OSError:
            pass
        finally:
            writer.close()
        assert sorted(os.listdir(tmp_path)) in (["outside"], ["outside", "root"])
        assert os.listdir(outside) == ["kept"]
        assert (outside / "kept").read_text() == "kept"
        assert (outside.stat().st_mtime_ns, (outside / "kept").stat().st_mtime_ns) == before
        remove_folder(tmp_path / "root")

    write()


def test_a_snapshot_keeps_links_that_lead_out_and_follows_none(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    before = kept.stat()
    writer = tree_writer.Writer(os.open(tmp_path, os.O_RDONLY), b"root", whole=True)
    writer.take([*folder(), *link(b"l", os.fsencode(kept)), *link(b"up", b"../kept"), *END_RECORD])
    list(writer.finish())
    writer.close()
    assert (os.readlink(tmp_path / "root/l"), os.readlink(tmp_path / "root/up")) == (str(kept), "../kept")
    assert kept.stat() == before
    assert (tmp_path / "root/l").lstat().st_mtime == 1_700_000_000


def test_a_snapshot_is_no_larger_than_its_sandbox(tmp_path: Path) -> None:
    writer = tree_writer.Writer(os.open(tmp_path, os.O_RDONLY), b"root", whole=True, max_bytes=5)
    holes = [DATA, b"999999", b"12345", b""]
    writer.take([*folder(), *file(b"sparse", b"", size=1_000_004), *holes])
    with pytest.raises(OSError, match="larger than 5 bytes"):
        writer.take(file(b"more"))
    writer.close()
    assert (tmp_path / "root/sparse").stat().st_size == 1_000_004
