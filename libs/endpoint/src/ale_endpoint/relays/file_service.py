"""Chat completions for an agent without any network, over a log in a file (`request_log.py`).

It is run as `python3 files.py LOG [--port 8080]`.

1. It writes each request to the log and waits for the response with its index (`pending_requests.py`).
2. An answer with a `status` beside its index is an error. A stream is made of the whole answer.
3. The watched processes are listed in `LOG.watch`, for a service that is started again.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ale_endpoint.relays.pending_requests import RequestError, Requests, start_of

PORT = 8080
PATIENCE_S, ALIVE_S, IDLE_S = 5.0, 10.0, 75.0
MOST_BODY, PIECE_CHARS = 16 << 20, 64


def events(body: dict[str, Any], usage: bool) -> Iterator[bytes]:
    """A whole answer as the stream that was asked for."""
    head: dict[str, Any] = {key: body[key] for key in ("id", "created", "model") if key in body}
    head["object"] = "chat.completion.chunk"

    def event(choices: Any, **more: Any) -> bytes:
        return b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"

    for choice in body.get("choices") or []:
        at, message = choice.get("index", 0), dict(choice.get("message") or {})
        content, calls = message.pop("content", None), message.pop("tool_calls", None)
        first: dict[str, Any] = {**message, "role": "assistant", "content": "" if content is not None else None}
        deltas = [first]
        text = content or ""
        deltas += [{"content": text[i : i + PIECE_CHARS]} for i in range(0, len(text), PIECE_CHARS)]
        deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(calls or [])]
        for delta in deltas:
            yield event([{"index": at, "delta": delta, "finish_reason": None}])
        more = {key: choice[key] for key in ("logprobs",) if choice.get(key)}
        yield event([{"index": at, "delta": {}, "finish_reason": choice.get("finish_reason"), **more}])
    if usage:
        yield event([], usage=body.get("usage"))
    yield b"data: [DONE]\n\n"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_S
    server: Server
    streaming = False

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the log has every call."""

    def do_GET(self) -> None:
        """`GET /health`."""
        found = self.path == "/health"
        self.reply(200, {"status": "healthy"}) if found else self.refuse(
            RequestError(404, "not_found", "There is no such path.")
        )

    def do_POST(self) -> None:
        """Answer chat completions, and requests to watch an agent's process."""
        self.streaming = False
        try:
            body = self.body()
            if self.path == "/v1/chat/completions":
                self.complete(body)
            elif self.path == "/v1/agent/watch":
                self.watch(body)
            else:
                raise RequestError(404, "not_found", f"POST {self.path}: there is no such path.")
        except RequestError as refused:
            self.refuse(refused)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except OSError as error:
            self.refuse(RequestError(503, "log_error", f"The log cannot be written: {error}."))

    def body(self) -> dict[str, Any]:
        """The request. Raises `RequestError`."""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            raw = self.read_chunks()
        else:
            length = self.headers.get("content-length", "")
            raw = self.rfile.read(self.check_size(int(length) if length.isdigit() else 0))
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise RequestError(400, "invalid_json", f"The request is not valid JSON: {error}.") from None
        if not isinstance(body, dict):
            raise RequestError(400, "invalid_request", "The request must be a JSON object.")
        return body

    def check_size(self, length: int) -> int:
        """Return the length of a body. Raises `RequestError` if it is larger than the limit."""
        if length > MOST_BODY:
            self.close_connection = True
            raise RequestError(413, "request_too_large", f"The request is larger than {MOST_BODY} bytes.")
        return length

    def read_chunks(self) -> bytes:
        """A body that comes in pieces of stated size."""
        raw = b""
        while True:
            try:
                size = int(self.rfile.readline(80).split(b";")[0], 16)
            except ValueError:
                self.close_connection = True
                raise RequestError(400, "invalid_request", "The request's pieces have no size.") from None
            self.check_size(len(raw) + size)
            piece = self.rfile.read(size)
            self.rfile.readline(80)
            if not size:
                return raw
            raw += piece

    def watch(self, body: dict[str, Any]) -> None:
        """End the session when a process ends."""
        pid = body.get("pid")
        if not isinstance(pid, int) or isinstance(pid, bool) or pid < 1:
            raise RequestError(400, "invalid_request", "'pid' must be the number of a process.")
        started = start_of(pid)
        with open(self.server.requests.path + ".watch", "a") as file:
            file.write(f"{pid} {started}\n")
        threading.Thread(target=self.server.requests.watch, args=(pid, started), daemon=True).start()
        self.reply(200, {"status": "watching", "pid": pid})

    def complete(self, body: dict[str, Any]) -> None:
        """Answer a model call. A stream begins late, so that a failure can have a status, and is then kept alive."""
        requests, began, stream = self.server.requests, time.monotonic(), bool(body.get("stream"))
        with self.server.turn or threading.Semaphore():
            index, record, hung_up = requests.begin(body), None, False
            try:
                spoke = began + PATIENCE_S - ALIVE_S
                while record is None:
                    record = requests.wait(index, 0.5)
                    now = time.monotonic()
                    if record is None and now - began > self.server.patience_s:
                        sentence = (
                            f"No answer came within {self.server.patience_s:g} s; nobody reads the log, or too slowly."
                        )
                        raise RequestError(503, "no_answer", sentence)
                    hung_up = self.hung_up()
                    if hung_up:
                        raise ConnectionError
                    if record is None and stream and now - spoke > ALIVE_S:
                        self.say(b": the model is at work\n\n")
                        spoke = now
            finally:
                if record is None or hung_up:
                    requests.leave(index, record)
        status = record.meta.get("status", 200)
        answer = record.body
        if not isinstance(answer, dict) or ("choices" not in answer and status == 200):
            raise RequestError(502, "bad_answer", f"The answer to request {index} in the log is no chat completion.")
        if status != 200:
            self.answer(status if isinstance(status, int) and 400 <= status < 600 else 502, answer)
        elif stream:
            options = body.get("stream_options")
            try:
                made = list(events(answer, bool(isinstance(options, dict) and options.get("include_usage"))))
            except (AttributeError, TypeError, ValueError):
                raise RequestError(
                    502, "bad_answer", f"The answer to request {index} in the log is no chat completion."
                ) from None
            for event in made:
                self.say(event)
        else:
            self.reply(200, answer)

    def hung_up(self) -> bool:
        """Whether the agent has hung up."""
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        return any(event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))

    def say(self, event: bytes) -> None:
        """A piece of a stream."""
        if not self.streaming:
            self.streaming = self.close_connection = True
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
        self.wfile.write(event)

    def refuse(self, refused: RequestError) -> None:
        """An error, in the API's own shape."""
        self.answer(refused.status, refused.body)

    def answer(self, status: int, body: dict[str, Any]) -> None:
        """An error as a status, or as an event of the stream that has begun."""
        if self.streaming:
            self.say(b"data: " + json.dumps(body).encode() + b"\n\n")
        else:
            self.reply(status, body)

    def reply(self, status: int, body: dict[str, Any]) -> None:
        """A whole answer."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if status in (429, 503):
            self.send_header("retry-after", "1")
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """Serves one log on loopback."""

    request_queue_size = 1024

    def __init__(self, port: int, requests: Requests, patience_s: float, in_turn: bool) -> None:
        self.requests, self.patience_s = requests, patience_s
        self.turn = threading.Semaphore() if in_turn else None
        super().__init__(("127.0.0.1", port), Handler)

    def server_bind(self) -> None:
        """Without the look-up of a name, which may take long where there is no network."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]


# --- the command line


def serve(path: str, port: int, patience_s: float, in_turn: bool) -> str:
    """Serve without end; return what went wrong if it cannot."""
    try:
        requests = Requests(path)
    except OSError as error:
        return f"The log {path} cannot be had: {error}."
    if requests.ended:
        return f"The session of {path} has ended; name another log."
    try:
        server = Server(port, requests, patience_s, in_turn)
    except OSError as error:
        return f"The port {port} of 127.0.0.1 cannot be had ({error}); name another one."
    threading.Thread(target=requests.follow, daemon=True).start()
    if os.path.exists(path + ".watch"):
        with open(path + ".watch") as file:
            for line in file:
                pid, _, started = line.strip().partition(" ")
                if pid.isdigit():
                    threading.Thread(target=requests.watch, args=(int(pid), started), daemon=True).start()
    print(f"listening on http://127.0.0.1:{server.server_port} for {path}", flush=True)
    server.serve_forever()
    return ""


def main() -> str:
    """The command line; what went wrong."""
    parser = argparse.ArgumentParser(description="Chat completions on 127.0.0.1, over a log in a file.")
    parser.add_argument("log", metavar="LOG")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds until a request without answer gets a 503"
    )
    parser.add_argument("--in-turn", action="store_true", help="one request at a time, for readers that know no more")
    given = parser.parse_args()
    return serve(given.log, given.port, given.timeout, given.in_turn)


if __name__ == "__main__":
    sys.exit(main() or None)
