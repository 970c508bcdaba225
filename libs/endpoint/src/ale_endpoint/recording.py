"""A recording: a JSONL file with one finished model call a line, in the shapes of chat completions.

1. A line is written whole before its answer goes out, so no answered call is lost, whatever ends the process. Half a
   line of a writer that was killed is skipped by readers and removed by the next writer.
2. There is one writer at a time, which holds a lock on the file; others may read meanwhile.
3. `redact` takes secrets out of every text of a line. The session is named by a hash of its key.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

from ale.config.references import redact_json
from ale.errors import AleError, ConfigError
from ale.messages import Answer, ChatReply, FinishWord, ModelCall
from ale.registry.validation import one_line_error
from ale_endpoint.dialects.chat_completions import read_message, read_tool

VERSION = 1


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One finished call. `number` counts the answers asked for in its session before it; `time` is when it began
    (Unix)."""

    session: str
    number: int
    time: float
    seconds: float
    request: ModelCall
    answer: Answer | None
    error: str | None = None
    """Why there is no answer."""


class Recording:
    """Writes a recording. Close it with `close`, or use it as a context."""

    def __init__(self, path: Path, redact: Callable[[str], str] = lambda text: text) -> None:
        """Open the file, which may hold calls already. Raises `ConfigError`."""
        self.path = path
        self.calls: Counter[str] = Counter()
        """How many answers each session has asked for so far, in this file."""
        self.lines = 0
        self._redact = redact
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"The recording {path} cannot be written: {one_line_error(error.strerror)}.") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._end = self._whole_lines()
            for call in read_recording(path):
                self.lines += 1
                self.calls[call.session] = max(self.calls[call.session], call.number + call.request.n)
            if os.pread(self._file, 1, self._end) not in (b"", b"{"):  # a line that a crash has cut begins like a call
                raise ConfigError(f"The file {path} is no recording, and is not written to; name another file.")
            os.ftruncate(self._file, self._end)
        except BlockingIOError:
            os.close(self._file)
            raise ConfigError(f"The recording {path} is being written by another process; name another file.") from None
        except BaseException:
            os.close(self._file)
            raise

    def _whole_lines(self) -> int:
        """Find where the last whole line ends."""
        end = os.fstat(self._file).st_size
        while end > 0:
            begin = max(0, end - (1 << 16))
            found = os.pread(self._file, end - begin, begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
        return 0

    def add(self, call: RecordedCall) -> None:
        """Write a call; it is on disk when this returns. Raises `AleError` where that fails."""
        data = redact_json(json.dumps(to_json(call), ensure_ascii=False), self._redact)
        try:
            line = data.encode() + b"\n"
        except UnicodeEncodeError:  # half a character, which models write into the arguments of calls
            line = redact_json(json.dumps(to_json(call)), self._redact).encode() + b"\n"
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            os.ftruncate(self._file, self._end)
            raise AleError(f"The recording {self.path} cannot be written: {one_line_error(error.strerror)}.") from error
        self._end += len(line)
        self.lines += 1

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_recording(path: Path) -> Iterator[RecordedCall]:
    """The calls of a recording in the order in which they finished. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return  # a writer was killed, or is writing it now
                try:
                    yield from_json(json.loads(line))
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                    fault = f"{'it lacks ' if isinstance(error, KeyError) else ''}{one_line_error(error)}"
                    raise ConfigError(f"{path}, line {number}: this is no call of a recording: {fault}.") from None
    except OSError as error:
        raise ConfigError(f"The recording {path} cannot be read: {one_line_error(error.strerror)}.") from None


def to_json(call: RecordedCall) -> dict[str, Any]:
    """Write a call as the object of a line."""
    asked, answer = call.request, call.answer
    request = {
        "messages": [message.to_openai() for message in asked.messages],
        "tools": [tool.to_openai() for tool in asked.tools],
        "tool_choice": asked.tool_choice,
        "max_tokens": asked.max_tokens,
        "stop": list(asked.stop),
        "n": asked.n,
        "other": dict(asked.ignored),
    }
    replies = [
        {
            "message": reply.message.to_openai(),
            "finish_reason": reply.finish_reason,
            "illegal": reply.illegal,
            "stop": reply.stop,
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
        }
        for reply in (answer.replies if answer is not None else ())
    ]
    return {
        "v": VERSION,
        "session": call.session,
        "call": call.number,
        "time": round(call.time, 3),
        "seconds": round(call.seconds, 3),
        "model": asked.model,
        "source": answer.source if answer is not None else None,
        "request": request,
        "replies": replies,
        "usage": dict(answer.usage) if answer is not None else {},
        "error": call.error,
    }


def from_json(data: Mapping[str, Any]) -> RecordedCall:
    """The inverse of `to_json`, up to numbers' rounding. Raises `ValueError` and what wrong types raise."""
    if data["v"] != VERSION:
        raise ValueError(f"it is of version {data['v']!r}, and this version of ALE reads {VERSION}")
    asked = data["request"]
    request = ModelCall(
        messages=tuple(read_message(raw, f"messages[{i}]") for i, raw in enumerate(asked["messages"])),
        tools=tuple(read_tool(raw, f"tools[{i}]") for i, raw in enumerate(asked["tools"])),
        tool_choice=asked["tool_choice"],
        max_tokens=asked["max_tokens"],
        stop=tuple(asked["stop"]),
        n=asked["n"],
        model=data["model"],
        ignored=asked["other"],
    )
    replies = tuple(_reply(raw, data["call"] + i) for i, raw in enumerate(data["replies"] or ()))
    answer = None if data["error"] is not None else Answer(replies, data["source"], data["usage"])
    if answer is not None and not replies:
        raise ValueError("it holds neither a reply nor an error")
    return RecordedCall(
        session=str(data["session"]),
        number=int(data["call"]),
        time=data["time"],
        seconds=data["seconds"],
        request=request,
        answer=answer,
        error=data["error"],
    )


def _reply(raw: Mapping[str, Any], number: int) -> ChatReply:
    if raw["finish_reason"] not in get_args(FinishWord):
        raise ValueError(f"'finish_reason' is {raw['finish_reason']!r}")
    return ChatReply(
        message=read_message(raw["message"], "message"),
        finish_reason=raw["finish_reason"],
        chunk=number,
        prompt_tokens=raw["prompt_tokens"],
        completion_tokens=raw["completion_tokens"],
        illegal=raw["illegal"],
        stop=raw["stop"],
    )
