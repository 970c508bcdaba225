"""Recordings on disk, and answers from them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ale.errors import AleError, ConfigError
from ale.messages import Answer, ChatReply, FinishWord, Message, ModelCall, ToolCall, ToolSpec
from ale_endpoint.recording import RecordedCall, Recording, read_recording
from ale_endpoint.replay import Replay

TOOL = ToolSpec("shell", "Runs.", {"type": "object", "properties": {"command": {"type": "string"}}})
ASKED = Message("assistant", "I look. ", (ToolCall("c1", "shell", '{"command":"ls"}'),))
HISTORY = (Message("system", "Act."), Message("user", "gö\n"), ASKED, Message("tool", "a.txt", tool_call_id="c1"))


def call(
    *texts: str,
    messages: tuple[Message, ...] = HISTORY,
    number: int = 0,
    session: str = "s",
    model: str = "m",
    tools: tuple[ToolSpec, ...] = (TOOL,),
    finish: FinishWord = "stop",
    error: str | None = None,
) -> RecordedCall:
    replies = tuple(ChatReply(Message("assistant", text), finish, number + i, 7, 3) for i, text in enumerate(texts))
    request = ModelCall(messages, tools, n=max(1, len(texts)), model=model, max_tokens=9, ignored={"temperature": 0.5})
    answer = None if error else Answer(replies, "http://up/v1", {"total_tokens": 10})
    return RecordedCall(session, number, 1.5, 0.25, request, answer, error)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    calls = [call("done"), call("a", "b", number=1), call(error="The engine is out."), call("half \ud83d", number=3)]
    calls[0] = replace(calls[0], request=replace(calls[0].request, tool_choice="shell", stop=("END",)))
    with Recording(tmp_path / "r.jsonl") as recording:
        for each in calls:
            recording.add(each)
    assert list(read_recording(tmp_path / "r.jsonl")) == calls
    assert len((tmp_path / "r.jsonl").read_bytes().splitlines()) == 4
    assert (tmp_path / "r.jsonl").stat().st_mode & 0o077 == 0, "conversations are nobody else's to read"


def test_a_torn_last_line_is_no_call_and_the_next_writer_takes_it_away(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with Recording(path) as recording:
        recording.add(call("one"))
        recording.add(call("two " * 40_000, number=1))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"v": 1, "sess')
    assert len(list(read_recording(path))) == 2
    path.write_bytes(whole + b'{"v": 1, "sess' + b"x" * 100_000)
    with Recording(path) as recording:
        assert (recording.lines, recording.calls["s"]) == (2, 2)
        recording.add(call("three", number=2))
    assert [c.number for c in read_recording(path)] == [0, 1, 2]
    path.write_bytes(b"{" + b"x" * 100_000)
    with Recording(path) as recording:
        assert recording.lines == 0
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("nonsense", "line 1: this is no call"),
        ("[]", "line 1: this is no call"),
        ("{}", "it lacks 'v'"),
        ('{"v": 2}', "of version 2, and this version of ALE reads 1"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_and_left_as_it_is(tmp_path: Path, line: str, sentence: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(f"{line}\nand more")
    for use in (lambda: list(read_recording(path)), lambda: Recording(path)):
        with pytest.raises(ConfigError, match=sentence):
            use()
    assert path.read_text() == f"{line}\nand more"
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_recording(tmp_path / "nowhere.jsonl"))
    with pytest.raises(ConfigError, match="cannot be written"):
        Recording(tmp_path / "no" / "folder.jsonl")


def test_one_file_has_one_writer(tmp_path: Path) -> None:
    with Recording(tmp_path / "r.jsonl"), pytest.raises(ConfigError, match="another process"):
        Recording(tmp_path / "r.jsonl")
    Recording(tmp_path / "r.jsonl").close()


def test_secrets_are_taken_out_of_every_text(tmp_path: Path) -> None:
    with Recording(tmp_path / "r.jsonl", lambda text: text.replace("sk-12345", "[key]")) as recording:
        recording.add(call("it is sk-12345", messages=(Message("user", "my key: sk-12345"),), error=None))
        recording.add(call(error="refused sk-12345"))
    assert "sk-12345" not in (tmp_path / "r.jsonl").read_text()
    assert [c.request.messages[0].content for c in read_recording(tmp_path / "r.jsonl")] == ["my key: [key]", "Act."]


WRITER = """
import sys
from pathlib import Path
from test_recording import call
from ale_endpoint.recording import Recording
with Recording(Path(sys.argv[1])) as recording:
    for number in range(1_000_000):
        recording.add(call("x" * 3000, number=number))
        print(number, flush=True)
"""


def test_kill_9_loses_no_call_that_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as writer:
        assert writer.stdout is not None
        for _ in range(50):
            last = writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        told = [int(last), *map(int, writer.stdout.read().split())]
    kept = [each.number for each in read_recording(path)]
    assert kept == list(range(len(kept)))
    assert len(kept) > told[-1] >= 49


# --- replay


def text_of(replay: Replay, request: ModelCall) -> list[str] | None:
    answer = replay.answer(request)
    return None if answer is None else [reply.message.content for reply in answer.replies]


def test_requests_are_found_by_what_they_say_whenever_they_come() -> None:
    other = (*HISTORY[:3], Message("tool", "b.txt", tool_call_id="c1"))
    replay = Replay([call("for a"), call("for b", messages=other), call(error="lost", messages=HISTORY[:2])])
    assert len(replay) == 2
    again = Message("assistant", " I look.", (ToolCall("call_9", "shell", '{"command": "ls"}'),))
    echoed = (*HISTORY[:2], again, Message("tool", "b.txt", tool_call_id="call_9"))
    assert text_of(replay, ModelCall(echoed, (TOOL,), model="m", max_tokens=1)) == ["for b"]
    assert text_of(replay, ModelCall(HISTORY, (TOOL,), model="m")) == ["for a"]
    assert text_of(replay, ModelCall(HISTORY[:2], (TOOL,), model="m")) is None


def test_several_answers_come_in_their_order_and_then_the_last_again() -> None:
    replay = Replay([call("one"), call("two", "three", number=1)])
    asked = ModelCall(HISTORY, (TOOL,), model="m")
    assert [text_of(replay, asked) for _ in range(2)] == [["one"], ["two"]]
    assert text_of(replay, replace(asked, n=3)) == ["three", "three", "three"]


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (
            ModelCall((*HISTORY[:3], Message("tool", "a.text", tool_call_id="c")), (TOOL,), model="m"),
            r"call 4 of session s\. The first 3 messages are the same; then message 3 \(tool\) has 'a.text' where "
            r"'a.txt' is",
        ),
        (
            ModelCall((Message("user", "other"),), (TOOL,), model="m"),
            r"They differ from the first message on: message 0 is of the role user",
        ),
        (ModelCall(HISTORY[:2], (TOOL,), model="m"), "the recorded one goes on with a message of the role assistant"),
        (
            ModelCall((*HISTORY, Message("user", "x")), (TOOL,), model="m"),
            "this request goes on with a message of the role user",
        ),
        (ModelCall(HISTORY, (), model="m"), "it has the tools shell and this request has none"),
        (ModelCall(HISTORY, (TOOL,), model="x"), "it asks for the model 'm' and this request for 'x'"),
    ],
)
def test_what_is_not_recorded_is_told_with_the_nearest_and_where_they_part(request_: ModelCall, sentence: str) -> None:
    replay = Replay([call("far", messages=(Message("system", "Else."),), number=1), call("done", number=4)])
    assert replay.answer(request_) is None
    with pytest.raises(AleError, match=sentence) as told:
        raise replay.refusal(request_)
    assert not told.value.retryable


def test_an_empty_recording_says_so() -> None:
    assert "holds no answered call" in str(Replay([call(error="x")]).refusal(ModelCall(HISTORY)))


def test_long_texts_are_shown_where_they_part() -> None:
    long = "the same words again and again " * 200
    replay = Replay([call("x", messages=(Message("user", f"{long}here it ends"),))])
    said = str(replay.refusal(ModelCall((Message("user", f"{long}there it ends"),), (TOOL,), model="m")))
    assert "there it ends' where" in said
    assert len(said) < 500


def test_a_file_that_is_no_recording_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine, without a line break at its end")
    with pytest.raises(ConfigError, match=r"notes is no recording, and is not written to"):
        Recording(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine, without a line break at its end"
