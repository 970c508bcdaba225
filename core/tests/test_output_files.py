"""Places that a user names for results: a bad one is refused in a sentence, and nothing is left half-written."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale.store.output_files import check_file, check_folder, make_folder, write_output, write_whole

PLACES = {
    "below a file": (lambda at: at / "file/new", "Not a directory"),
    "deep below a file": (lambda at: at / "file/a/b/c", "Not a directory"),
    "in a folder of the kernel": (lambda _: Path("/proc/nothing/new"), "No such file or directory"),
    "a long name": (lambda at: at / "new" / ("n" * 300), "File name too long"),
    "a long path": (lambda at: at.joinpath(*["part" * 50] * 30), "File name too long"),
    "a name with a null byte": (lambda at: at / "new/a\0b", "No file can have this name"),
    "a link to itself": (lambda at: at / "loop/new", "Too many levels of symbolic links"),
    "a link to nothing": (lambda at: at / "dangling/new", "No such file or directory"),
}
USES: dict[str, Callable[[Path], object]] = {
    "make_folder": make_folder,
    "check_folder": check_folder,
    "check_file": check_file,
    "write_output": lambda path: write_output(path, "text"),
}


@pytest.fixture
def at(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("/proc/nothing")
    return tmp_path


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", PLACES)
def test_a_place_where_nothing_can_be_made_is_a_sentence_and_stays_as_it_was(place: str, use: str, at: Path) -> None:
    find, reason = PLACES[place]
    before = sorted(at.rglob("*"))
    with pytest.raises(ConfigError, match=f"cannot be (made|written|written to): {reason}.* Name another one") as error:
        USES[use](find(at))
    assert len(str(error.value)) < 500
    assert "\0" not in str(error.value)
    assert sorted(at.rglob("*")) == before
    assert (at / "file").read_text() == "mine"


def test_a_file_is_no_folder_and_a_folder_is_no_file(at: Path) -> None:
    for check in (make_folder, check_folder):
        with pytest.raises(ConfigError, match=r"The folder .*/file cannot be made: Not a directory"):
            check(at / "file")
    for use in ("check_file", "write_output"):
        with pytest.raises(ConfigError, match=r"The file .* cannot be written: Is a directory"):
            USES[use](at)
    assert not [path for path in at.iterdir() if path.name.startswith(".ale-")]


def test_a_link_to_a_place_where_nothing_can_be_made_is_refused_before_any_work(at: Path) -> None:
    (at / "out.json").symlink_to("/proc/nothing/out.json")
    for use in ("check_file", "write_output"):
        with pytest.raises(ConfigError, match="The folder of the file /proc/nothing cannot be made"):
            USES[use](at / "out.json")
    (at / "to_come.json").symlink_to("new/file.json")
    check_file(at / "to_come.json")
    assert not (at / "new").exists()
    write_output(at / "to_come.json", "text")
    assert (at / "new/file.json").read_text() == "text"


def test_a_check_leaves_nothing_and_touches_nothing(at: Path) -> None:
    check_folder(at / "a/b")
    check_file(at / "c/d.json")
    check_file(at / "file")
    assert sorted(path.name for path in at.iterdir()) == ["dangling", "file", "loop"]
    assert (at / "file").read_text() == "mine"


def test_a_file_is_written_whole_with_the_folders_above_it(at: Path) -> None:
    path = write_output(at / "a/b/page.html", "new")
    assert path.read_text() == "new"
    write_output(path, b"newer")
    assert path.read_text() == "newer"
    assert [each.name for each in path.parent.iterdir()] == ["page.html"]
    assert path.stat().st_mode & stat.S_IROTH == ~_umask() & stat.S_IROTH


def test_a_link_stays_a_link_and_a_device_a_device(at: Path) -> None:
    (at / "link").symlink_to("file")
    write_whole(at / "link", "new")
    assert (at / "link").is_symlink()
    assert (at / "file").read_text() == "new"
    os.mkfifo(at / "pipe")
    reader = os.open(at / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(at / "pipe", "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert (at / "pipe").is_fifo()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
