"""What both APIs share: the envelope, ids, sizes, and a sandbox's spec in JSON."""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, StringConstraints

from ale.specs.sandbox import SandboxSpec

ROCK_BASE = "/apis/envs/sandbox/v1"
ALE_BASE = "/apis/ale/v1"
WORKERS_BASE = "/apis/workers/v1"
WORKER_ID = "X-ALE-Worker-Id"
"""The header that names the worker's registration for which the admin sends a request. A network that was cut can
deliver a request late. A worker that has registered again refuses it, because its sender has given it up."""
JOB_EXIT_CODES = "X-Job-Exit-Codes"
"""The header by which a client asks for the exit codes of background jobs (`worker.nohup`), with the value `true`."""

BAD_REQUEST: Final = 4000
SERVICE_ERROR: Final = 5000
COMMAND_ERROR: Final = 6000
Code = Literal[4000, 5000, 6000]
State = Literal["pending", "running", "stopped", "archiving", "archived", "deleted"]
LIVE: frozenset[State] = frozenset({"pending", "running"})
ACTIONS = ("create_session", "run_in_session", "close_session", "execute", "read_file", "write_file", "upload")
"""Actions of a ROCK client in a sandbox, which the worker answers with the finished envelope."""

ID = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
SandboxId = Annotated[str, StringConstraints(pattern=ID)]
"""Safe as a part of a URL, of a path and of a container's name."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]

# --- the envelope


def success(result: Any, message: str | None = None) -> dict[str, Any]:
    """Return the envelope of an answer that is not an error."""
    return {"status": "Success", "message": message, "error": None, "result": result}


def failed(code: Code, sentence: str, *, exit_code: int | None = None, message: str | None = None) -> dict[str, Any]:
    """Return the envelope of an error. `sentence` is for a person; `message` replaces it where ROCK's
    protocol fixes the words."""
    result = {"code": code, "exit_code": exit_code, "failure_reason": sentence}
    return {"status": "Failed", "message": message or sentence, "error": sentence, "result": result}


class RockError(Exception):
    """An error as a client of ROCK gets it (`failed`): a sentence, whose fault it is, and the exit code of a command
    that failed. Routes without an envelope answer it as a `Fault`."""

    def __init__(self, sentence: str, code: Code = BAD_REQUEST, exit_code: int | None = None) -> None:
        super().__init__(sentence)
        self.sentence, self.code, self.exit_code = sentence, code, exit_code


# --- sizes

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:ib?|b)?\s*", re.IGNORECASE)


def size_bytes(text: str) -> int:
    """Return the bytes of a size such as `8g`, `512m`, `1.5Gi` or `1024`. Raises `ValueError` with a sentence."""
    match = _SIZE.fullmatch(text)
    size = int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ")) if match else 0
    if not 0 < size < 1 << 60:
        raise ValueError(f"{text!r} is no size above zero; write 512m, 8g or 1t")
    return size


def size_text(mib: int) -> str:
    """Return a number of MiB as ROCK writes sizes."""
    return f"{mib}m" if mib % 1024 else f"{mib // 1024}g"


def _check_size(value: str) -> str:
    size_bytes(value)
    return value


Size = Annotated[str, StringConstraints(max_length=32), AfterValidator(_check_size)]

# --- a sandbox's spec in JSON


def _read_spec(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("files"), dict):
        if not all(isinstance(text, str) for text in value["files"].values()):
            raise ValueError("files: the content of each is a text in base64")
        files = {path: base64.b64decode(text, validate=True) for path, text in value["files"].items()}
        return {**value, "files": files}
    return value


def _write_spec(spec: SandboxSpec) -> dict[str, Any]:
    data = spec.model_dump(mode="json", exclude={"files"}, exclude_defaults=True)
    files = {path: base64.b64encode(content).decode() for path, content in spec.files.items()}
    return {**data, "files": files} if files else data


Spec = Annotated[SandboxSpec, BeforeValidator(_read_spec), PlainSerializer(_write_spec, when_used="json")]
"""A `SandboxSpec` whose files are base64 in JSON."""
