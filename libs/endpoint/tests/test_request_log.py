"""The log of the file protocol: records whatever is in them, and files whatever becomes of them."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_endpoint.relays import request_log
from ale_endpoint.relays.request_log import HEAD_BYTES, SESSION_END, Log, append, encode, parse

MARKERS = ("LLM_REQUEST_START", "LLM_REQUEST_END", "LLM_RESPONSE_START", "LLM_RESPONSE_END", "SESSION_END")
pieces = st.one_of(
    st.sampled_from(
        [*MARKERS, "\n", "\r", "\r\n", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\0", "\\", '"', "{", "}"]
    ),
    st.text(max_size=5),
    st.just("\ud800"),
)
texts = st.lists(pieces, max_size=8).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(values, st.integers(1, 10**9), st.sampled_from(["request", "response"]))
def test_a_record_is_read_as_it_was_written_and_is_one_line_to_every_reader(body: Any, number: int, kind: str) -> None:
    line = encode(kind, body, number)
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1
    assert b"\0" not in line
    for marker in MARKERS:
        assert line.count(marker.encode()) == (marker in (f"LLM_{kind.upper()}_START", f"LLM_{kind.upper()}_END"))
    record = parse(line)
    assert record is not None
    assert (record.kind, record.number, record.body) == (kind, number, body)


@given(values, st.integers(1, 99))
def test_the_unescaped_record_of_another_writer_is_read_from_the_outside_in(body: Any, number: int) -> None:
    text = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass").replace(b"\xed\xa0\x80", b"?")
    expected = json.loads(text)
    line = b"LLM_REQUEST_START" + text + b'LLM_REQUEST_END{"timestamp": 1, "index": %d}\n' % number
    record = parse(line)
    assert record is not None
    assert (record.kind, record.number, record.body) == ("request", number, expected)


@given(st.binary(max_size=80), st.lists(st.sampled_from([*MARKERS, '{"index": 1}', "{}", "1", "x"]), max_size=6))
def test_no_line_breaks_the_reader(noise: bytes, parts: list[str]) -> None:
    for line in (noise, "".join(parts).encode(), noise + "".join(parts).encode()):
        record = parse(line)
        assert record is None or record.kind == "end" or record.number > 0


@given(texts, texts, st.data())
def test_a_whole_record_behind_a_torn_one_is_found(one: str, two: str, data: st.DataObject) -> None:
    torn = encode("response", one, 1)
    cut = data.draw(st.integers(1, torn.rindex(b"LLM_RESPONSE_END")))
    record = parse(torn[:cut] + encode("request", two, 2))
    assert record is not None
    assert (record.kind, record.number, record.body) == ("request", 2, two)


@pytest.mark.parametrize("line", [b"SESSION_END", b"  SESSION_END\r", b"SESSION_END\n"])
def test_the_end_of_a_session_is_a_line_of_its_own(line: bytes) -> None:
    record = parse(line)
    assert record is not None
    assert record.kind == "end"
    assert parse(b"it says SESSION_END") is None


def test_half_a_line_is_not_read_until_it_is_whole(tmp_path: Path) -> None:
    path, line = tmp_path / "log", encode("request", "é", 1)
    reader = Log(str(path))
    assert reader.read() == []
    with path.open("ab", buffering=0) as file:
        for at in range(len(line)):
            file.write(line[at : at + 1])
            assert reader.read() == ([] if at < len(line) - 1 else [line[:-1]])
    reader.close()


def test_a_writer_goes_on_after_one_that_died_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path, torn = tmp_path / "log", encode("response", "x", 1)[:30]
    path.write_bytes(torn)
    append(str(path), encode("request", "y", 2))
    lines = Log(str(path)).read()
    assert lines[0] == torn
    assert [record and record.body for record in map(parse, lines)] == [None, "y"]


def test_several_processes_write_at_once_and_no_line_is_broken(tmp_path: Path) -> None:
    path, count = tmp_path / "log", 40
    program = (
        "import sys; from ale_endpoint.relays.request_log import append, encode\n"
        "for n in range(1, int(sys.argv[3]) + 1): append(sys.argv[1], encode('request', sys.argv[2] * 20000, n))"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(path), letter, str(count)], env={**os.environ})
        for letter in "abcd"
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    found = [parse(line) for line in path.read_bytes().splitlines()]
    assert len(found) == 4 * count
    said = [(record.body[0], record.number) for record in found if record is not None and len(set(record.body)) == 1]
    assert sorted(said) == sorted((letter, n) for letter in "abcd" for n in range(1, count + 1))


def test_a_lock_that_is_never_given_back_does_not_stop_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "LOCK_S", 0.1)
    with (tmp_path / "log").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        append(str(tmp_path / "log"), b"line\n")
    assert Log(str(tmp_path / "log")).read() == [b"line"]


def test_a_writer_that_waited_for_the_lock_writes_to_the_log_that_is_there_then(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        writer = threading.Thread(target=append, args=(str(path), b"line\n"))
        writer.start()
        time.sleep(0.3)
        path.rename(tmp_path / "log.1")
        path.touch()
    writer.join()
    assert path.read_bytes() == b"line\n"


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
def test_a_rotated_log_is_read_to_its_end_and_then_the_new_one(tmp_path: Path, keep: bool, restarted: bool) -> None:
    path = tmp_path / "log"
    append(str(path), b"one\n")
    reader = Log(str(path))
    assert reader.read() == [b"one"]
    append(str(path), b"two\n")
    held = path.open("rb")  # so that the inode is not given to the next file
    path.rename(tmp_path / "log.1") if keep else path.unlink()
    append(str(path), b"three\n")
    if restarted:
        reader = Log(str(path), **reader.place())
    lost = restarted and not keep
    assert [*reader.read(), *reader.read()] == ([b"three"] if lost else [b"two", b"three"])
    assert ("gone" in " ".join(reader.notes)) == lost
    held.close()


def test_a_log_that_was_rotated_in_the_middle_of_a_line_says_so(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntor")
    reader = Log(str(path))
    assert reader.read() == [b"one"]
    path.rename(tmp_path / "log.1")
    append(str(path), b"two\n")
    assert reader.read() == [b"two"]
    assert "half a line at byte 4" in reader.notes[0]


@pytest.mark.parametrize("size", [3, 2000])
def test_a_truncated_log_is_read_from_its_beginning(tmp_path: Path, size: int) -> None:
    path = tmp_path / "log"
    append(str(path), b"a" * HEAD_BYTES + b"\n")
    reader = Log(str(path))
    assert len(reader.read()) == 1
    os.truncate(path, 0)
    append(str(path), b"b" * size + b"\n")  # may be longer than what was there
    assert reader.read() == [b"b" * size]
    assert "truncated" in reader.notes[0]


def test_a_line_longer_than_what_is_read_at_once_is_read_whole_and_one_without_end_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    append(str(path), b"x" * 5000 + b"\n" + b"y\n")
    reader = Log(str(path))
    assert [*reader.read(limit=100), *reader.read(limit=100)] == [b"x" * 5000, b"y"]
    monkeypatch.setattr(request_log, "MOST_LINE", 1000)
    append(str(path), b"z" * 1500 + b"\n" + SESSION_END + b"\n")
    lines = [line for _ in range(4) for line in reader.read(limit=100)]
    assert lines[-1] == SESSION_END
    assert "more than 1000 bytes" in reader.notes[0]


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_of_its_own_is_neither_read_nor_written(tmp_path: Path, kind: str) -> None:
    path, secret = tmp_path / "log", tmp_path / "secret"
    secret.write_text("kept\n")
    {"link": lambda: path.symlink_to(secret), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    with pytest.raises(OSError):
        Log(str(path)).read()
    with pytest.raises(OSError):
        append(str(path), b"line\n")
    assert secret.read_text() == "kept\n"


def test_another_process_reads_on_from_where_one_stood(tmp_path: Path) -> None:
    path, script = str(tmp_path / "log"), str(request_log.__file__)

    def run(*words: str, stdin: bytes = b"") -> bytes:
        return subprocess.run(
            [sys.executable, "-I", script, *words], input=stdin, capture_output=True, check=True
        ).stdout

    run("append", path, stdin=b"one\n")
    first, *lines = run("read", path).splitlines()
    assert lines == [b"one"]
    run("append", path, stdin=b"two\n")
    place = json.dumps(json.loads(first)[0])
    assert run("read", path, "--place", place, "--wait", "5").splitlines()[1:] == [b"two"]
