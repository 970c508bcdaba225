"""What the attacks share: tokens of several roles, every route of the service, and requests as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from ale_rock.schemas import ROCK_BASE

TOKENS = {"admin": "a" * 20, "anna": "b" * 20, "bert": "c" * 20, "worker": "d" * 20}
SETTINGS: dict[str, Any] = {
    "tokens": [
        {"token": TOKENS["admin"], "role": "admin"},
        {"token": TOKENS["anna"], "role": "user", "user": "anna"},
        {"token": TOKENS["bert"], "role": "user", "user": "bert"},
        {"token": TOKENS["worker"], "role": "worker"},
    ],
    "worker__admin_token": TOKENS["worker"],
}
VALUES: dict[str, Any] = {
    "action": "x", "command": "ls", "content": "x", "env_id": "x", "env_name": "x", "image": "x", "image_tag": "x",
    "path": "/tmp/x", "requests": [{"image": "x"}],
}  # fmt: skip
"""What a request needs besides the sandbox's id."""
UNDESCRIBED = [("GET", f"{ROCK_BASE}/sandboxes/{{sandbox_id}}/proxy/x")]
"""Routes that the OpenAPI document leaves out."""


def shown(name: str) -> dict[str, str]:
    """The header with a token."""
    return {"Authorization": f"Bearer {TOKENS[name]}"}


@dataclass(frozen=True)
class Operation:
    """A route and what a request to it looks like."""

    method: str
    path: str
    about_sandbox: bool = False
    query: tuple[str, ...] = ()
    body: tuple[str, ...] | None = None
    """The names of its fields; None: no JSON."""
    form: bool = field(default=False)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    async def send(self, http: httpx.AsyncClient, sandbox_id: str, headers: dict[str, str]) -> httpx.Response:
        """Send a request about a sandbox."""
        known = {**VALUES, "sandbox_id": sandbox_id, "sandbox_ids": [sandbox_id]}
        asked: dict[str, Any] = {"params": {name: known[name] for name in self.query if name in known}}
        if self.form:
            asked |= {"data": {"sandbox_id": sandbox_id, "target_path": "/tmp/x"}, "files": {"file": b"x"}}
        elif self.path.endswith("/files"):
            asked["params"]["path"] = "/tmp/x"
        elif self.body is not None:
            asked["json"] = {name: known[name] for name in self.body if name in known}
        path = self.path.replace("{sandbox_id}", sandbox_id)
        return await http.request(self.method, path, headers=headers, **asked)


async def operations(http: httpx.AsyncClient) -> list[Operation]:
    """Return every operation of the service."""
    document = (await http.get("/openapi.json")).json()
    found = [Operation(method, path, about_sandbox=True) for method, path in UNDESCRIBED]
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            content = described.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema")
            fields = None if schema is None else tuple(_resolved(schema, document)["properties"])
            query = tuple(each["name"] for each in described.get("parameters", ()) if each["in"] == "query")
            form = path.endswith("/upload")
            names = {*query, *(fields or ())}
            about = form or "{sandbox_id}" in path or bool(names & {"sandbox_id", "sandbox_ids"})
            about = about and not path.endswith(("/start", "/start_async"))  # there the id is one to be made
            found.append(Operation(method.upper(), path, about, query, fields, form))
    return found


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = document["components"]["schemas"][name] if name else schema
    return found


def sentence_of(answer: httpx.Response) -> str:
    """Return the sentence of a refusal, with ROCK's envelope, in E2B's shape or in ours. Raises `AssertionError` if the
    answer is not a refusal."""
    found = answer.json()
    if answer.status_code == 200:
        assert found["status"] == "Failed", found
        assert found["result"]["code"] in (4000, 5000)
        sentence = found["result"]["failure_reason"]
    else:
        assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
        sentence = found["detail"] if "detail" in found else found["message"]  # E2B's errors have a message
    assert isinstance(sentence, str)
    assert len(sentence) > 10, found
    return sentence


async def send_bytes(url: str, pieces: Iterable[bytes], pause_s: float = 0.0) -> bytes:
    """Send bytes as they are, with a pause after each piece, and return all that comes until the service hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))

    async def send() -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    sending, received = asyncio.create_task(send()), b""
    try:
        while piece := await reader.read(1 << 16):
            received += piece
    except ConnectionResetError:
        pass  # the service has hung up while this still sends
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()
    return received


def request_head(path: str, **headers: str) -> bytes:
    """Return the beginning of a request."""
    lines = {"Host": "localhost", "Connection": "close", **headers}
    return "\r\n".join(
        [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items()), "", ""]
    ).encode()


def repeated(piece: bytes, count: int) -> Iterator[bytes]:
    """Yield a piece several times."""
    return (piece for _ in range(count))
