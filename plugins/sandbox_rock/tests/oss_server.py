"""A small object storage: the part of Alibaba Cloud OSS that ROCK's client uses for files below 10 MiB.

Objects are at `/BUCKET/KEY`. Requests are signed by the header `Authorization` or in the URL (signatures of version 1);
a wrong or old signature is refused, as is a token that was not issued.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit

KEY, SECRET, TOKEN = "test-key", "test-secret", "test-token"


class ObjectStore(ThreadingHTTPServer):
    """The server; `objects` has what lies in it, by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.refused: list[str] = []

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: ObjectStore
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is_admitted():
            self.server.objects[self._path()] = body
            self._answer(200, b"")

    def do_GET(self) -> None:
        if self._is_admitted():
            found = self.server.objects.get(self._path())
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>") if found is None else self._answer(200, found)

    def _path(self) -> str:
        return unquote(urlsplit(self.path).path)

    def _is_admitted(self) -> bool:
        query = dict(parse_qsl(urlsplit(self.path).query))
        if "Signature" in query:
            key, signature, date = query["OSSAccessKeyId"], query["Signature"], query["Expires"]
            token, signed = query.get("security-token"), f"?security-token={query.get('security-token')}"
            is_fresh = float(date) > time.time()
        else:
            key, _, signature = self.headers.get("Authorization", "").removeprefix("OSS ").partition(":")
            date, token, signed, is_fresh = self.headers["Date"], self.headers.get("x-oss-security-token"), "", True
        own = sorted((name.lower(), value) for name, value in self.headers.items() if name.lower().startswith("x-oss-"))
        kind, digest = self.headers.get("Content-Type", ""), self.headers.get("Content-MD5", "")
        text = "\n".join([self.command, digest, kind, date, *(f"{name}:{value}" for name, value in own)])
        expected = hmac.new(SECRET.encode(), f"{text}\n{self._path()}{signed}".encode(), hashlib.sha1).digest()
        right = hmac.compare_digest(base64.b64encode(expected).decode(), signature)
        if is_fresh and right and (key, token) == (KEY, TOKEN):
            return True
        self.server.refused.append(f"{self.command} {self.path}")
        self._answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        return False

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-oss-request-id", "1")
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Serve an empty one."""
    with ObjectStore() as store:
        thread = threading.Thread(target=store.serve_forever, daemon=True)
        thread.start()
        yield store
        store.shutdown()
        thread.join()
