"""A task: the agent's instruction, what its sandbox must be like, and what judges the result.

A task need not have tests, nor use a sandbox: a question with an answer in `metadata` is a task too.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, field_validator, model_validator

from ale.messages import Message, short_repr

TRAIN, HELDOUT = "train", "heldout"
NetworkMode = Literal["none", "endpoint-only", "allow", "full"]
ALLOW = (
    "What the network mode `allow` lets through, TCP alone: `host:port` entries. A host is a name (`pypi.org:443`), "
    "all names below one (`*.example.org:443`), any public host (`*:443`), or an address (`10.0.0.5:5432`, `[::1]:80`)."
)
_HOST = re.compile(r"(\*\.)?(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*|\*")


def host_and_port(entry: str) -> tuple[str, int]:
    """Split an entry of `allow` into host and port. Raises `ValueError` with a sentence."""
    host, colon, port = entry.strip().lower().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        host = ipaddress.ip_address(host[1:-1] if bracketed else host).compressed
    except ValueError:
        good = not bracketed and len(host) <= 253 and bool(_HOST.fullmatch(host))
    else:
        good = bracketed == (":" in host)
    if not (colon and good and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(
            f"{entry!r} is no host and port; write pypi.org:443, *.example.org:443, 10.0.0.5:5432 or [2001:db8::1]:80"
        )
    return ("127.0.0.1" if host == "localhost" else host), int(port)


class Resources(BaseModel):
    """Limits of one sandbox; null means the provider's own limit. A provider without the capability `limits` refuses
    all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpus: float | None = Field(None, gt=0, description="CPU cores; fractions are allowed.")
    memory_mib: int | None = Field(None, gt=0, description="Memory in MiB.")
    pids: int | None = Field(None, gt=0, description="Most processes and threads at the same time.")
    disk_mib: int | None = Field(None, gt=0, description="Size of the writable file system in MiB.")
    open_files: int | None = Field(None, gt=15, description="Most files that one process may have open.")
    gpus: int | None = Field(None, gt=0, description="GPUs given to the sandbox (capability `gpu`).")


def _read_content(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) and set(value) == {"base64"} else value


def _write_content(value: str | bytes) -> str | dict[str, str]:
    return value if isinstance(value, str) else {"base64": base64.b64encode(value).decode()}


FileContent = Annotated[
    str | bytes, BeforeValidator(_read_content), PlainSerializer(_write_content, when_used="json", return_type=Any)
]
"""A file's content: text (UTF-8), or bytes, which JSON holds as `{"base64": "..."}`."""


def as_bytes(content: str | bytes) -> bytes:
    """Return a file's content as bytes."""
    return content.encode() if isinstance(content, str) else content


class TaskTests(BaseModel):
    """The hidden tests: they reach the sandbox only when the reward is computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str = Field(description="Shell command run in the work folder; exit code 0 means that the task is solved.")
    files: dict[str, FileContent] = Field(
        default_factory=dict,
        description="Test files, path -> content. They are in the folder $ALE_TESTS while the command runs.",
    )
    timeout_s: float = Field(
        30.0, gt=0, description="Seconds before the tests are stopped; a time-out is a failed test."
    )
    reward_file: str | None = Field(
        None,
        description="File in $ALE_TESTS into which the tests write the reward: a number, or a JSON object of numbers, "
        "of which `reward`, or else the mean, is the reward. The exit code then says nothing.",
    )
    artifacts: tuple[str, ...] | None = Field(
        None,
        description="If given, the tests run in a sandbox apart that gets these files and folders of the agent's work "
        "folder; null: they run where the agent worked.",
    )


class ImageBuild(BaseModel):
    """A container image to build (capability `builds`); providers keep it by its content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dockerfile: str = Field(min_length=1, description="Text of the Dockerfile.")
    files: dict[str, FileContent] = Field(
        default_factory=dict, description="Files beside it: relative path -> content."
    )
    timeout_s: float = Field(600.0, gt=0, description="Seconds before the build is given up.")


class Task(BaseModel):
    """One task. It is frozen, and two tasks with the same id are the same task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, description="Unique in its source, stable between runs.")
    instruction: str = Field(description="The instruction for the agent.")
    messages: tuple[Message, ...] = Field(
        (), description="The conversation before the instruction: a system message, earlier turns."
    )
    tests: TaskTests | None = Field(None, description="Hidden tests; null: another reward judges the episode.")
    files: dict[str, FileContent] = Field(
        default_factory=dict, description="Files in the work folder at the start: relative path -> content."
    )
    image: str | None = Field(None, description="Container image that the task needs; null: the provider's default.")
    build: ImageBuild | None = Field(None, description="Container image to build for the task, instead of `image`.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables in the sandbox.")
    user: Literal["agent", "root"] | None = Field(None, description="User that runs the agent's commands.")
    workdir: str | None = Field(None, description="Absolute path of the work folder; null: the provider's default.")
    resources: Resources | None = Field(None, description="Limits that replace those of the run, key by key.")
    network: NetworkMode | None = Field(
        None, description="What its sandbox can reach; a run that gives less (`needs.network`) refuses the task."
    )
    allow: tuple[str, ...] = Field((), description=ALLOW)
    timeout_s: float | None = Field(
        None, gt=0, description="Seconds that the agent has; if the run file sets rollout.timeout_s, at most that many."
    )
    tags: tuple[str, ...] = Field((), description="Words by which tasks are selected, such as family or difficulty.")
    solution: str | None = Field(None, description="Reference solution: a shell script that solves the task.")
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Data that the task source adds, such as the `answer` for a reward."
    )

    __repr__ = __str__ = short_repr

    @field_validator("workdir")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError("the work folder must be an absolute path")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Task:
        if self.image and self.build:
            raise ValueError("give either 'image' or 'build', not both")
        if bool(self.allow) != (self.network == "allow"):
            raise ValueError("'allow' names the hosts of the network mode allow: give both or neither")
        for entry in self.allow:
            host_and_port(entry)
        return self
