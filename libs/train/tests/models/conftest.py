"""A hub on loopback for the library's own client, and a cache and a home of the test's own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"
WHOLE = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b'{"chat_template": "x"}',
    "model.safetensors": b"w" * 3000,
    "pytorch_model.bin": b"p" * 9000,
    "onnx/model.onnx": b"o" * 9000,
    "README.md": b"read me",
}


@dataclass
class Hub:
    """The repositories of the hub (name -> files), which of them are gated, and every request; the cache beside it."""

    folder: Path
    url: str = ""
    whole: dict[str, bytes] = field(default_factory=lambda: dict(WHOLE))
    token: str = TOKEN
    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    slow_s: float = 0.0
    status: int = 200

    def answer(self, method: str, path: str, token: str) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers and the body of an answer."""
        self.requests.append(f"{method} {path}")
        if self.status != 200:
            return self.status, {}, b"down"
        parts = path.strip("/").split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        rest = parts[4:] if parts[0] == "api" else parts[2:]
        files = self.models.get(name)
        if files is None:
            return 401, {"X-Error-Code": "RepoNotFound"}, b""
        if len(rest) > 1 and rest[1] not in ("main", "v1", COMMIT):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if parts[0] != "api" and name in self.gated and token != f"Bearer {TOKEN}":
            return 401, {"X-Error-Code": "GatedRepo"}, b""
        if parts[0] == "api":
            return 200, {"Content-Type": "application/json"}, json.dumps(self._describe(name, files, rest)).encode()
        file = "/".join(rest[2:])
        if file not in files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        if method == "GET" and file.endswith(".safetensors"):
            time.sleep(self.slow_s)
        etag = hashlib.sha256(files[file]).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, files[file]

    def put_into_cache(self, name: str, files: dict[str, bytes], revision: str = "main") -> Path:
        """Put files into the cache, as the library lays them out; returns the snapshot."""
        repository = self.folder / "home" / "hub" / f"models--{name.replace('/', '--')}"
        snapshot = repository / "snapshots" / COMMIT
        for path, data in files.items():
            (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
            (snapshot / path).write_bytes(data)
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / revision).write_text(COMMIT)
        return snapshot

    def _describe(self, name: str, files: dict[str, bytes], rest: list[str]) -> Any:
        if rest[:1] == ["tree"]:
            return [{"type": "file", "path": f, "size": len(data), "oid": "0"} for f, data in files.items()]
        siblings = [{"rfilename": f, "size": len(data)} for f, data in files.items()]
        return {"id": name, "sha": COMMIT, "gated": "auto" if name in self.gated else False, "siblings": siblings}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that has one whole model, `team/small`, for this process and for those that it starts."""
    hub = Hub(tmp_path, models={"team/small": dict(WHOLE)})

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = hub.answer(
                self.command, self.path.partition("?")[0], self.headers.get("Authorization", "")
            )
            with contextlib.suppress(ConnectionError):  # a download that was cancelled does not wait for it
                self.send_response(status)
                for key, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        _use_hub(hub.url, tmp_path, monkeypatch)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def _use_hub(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the library use this address, with a cache in the folder and nobody logged in."""
    home = folder / "home"
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}.items():
        monkeypatch.setenv(name, value)
    # The library reads its variables once, when it is imported.
    values = {"ENDPOINT": url, "HF_HUB_CACHE": str(home / "hub"), "HF_TOKEN_PATH": str(home / "token")}
    for name, value in {**values, "HF_HUB_OFFLINE": False}.items():
        monkeypatch.setattr(constants, name, value)
