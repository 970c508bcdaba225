"""What a plugin says of its server: how it is started, and how it is asked. `ServerReplica` does the rest with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from ale.specs.engine import GenerateRequest, Ticket
from ale_engines.server.http_client import ServerClient
from ale_engines.server.launch import Launch, ServerSetup
from ale_engines.server.sampled_tokens import Sampled
from ale_engines.weights.fingerprint import Fingerprint

CHECK_S = 3.0
"""Seconds for an answer to a request of `ask_metrics`: the pool gives a check 10 s (`member.py`)."""


class ServerContract(ABC):
    """One kind of server, in the releases `versions[0] <= release < versions[1]`."""

    server: ClassVar[str]
    """The plugin's name, such as `vllm`."""
    versions: ClassVar[tuple[str, str]]
    device: str = ""
    """What it computes on, `cpu` or `cuda`, once it has started; of a server at a URL that is not known."""

    @abstractmethod
    def find_python(self, device: str) -> Path | None:
        """The Python that has the server's build for a device, `cpu` or `cuda`; None if there is none."""

    @abstractmethod
    def make_argv(self, launch: Launch) -> list[str]:
        """The server's command line, without `arguments` of the settings."""

    def make_own_environment(self, launch: Launch) -> Mapping[str, str]:
        """Environment variables that the server needs."""
        return {}

    @abstractmethod
    def make_client(self, launch: Launch) -> ServerClient:
        """A client for the server that `make_argv`, called before, starts."""

    @abstractmethod
    async def ask_release(self) -> str:
        """The server's release, once it serves. Raises `ConnectionLost` while it does not."""

    @abstractmethod
    async def ask_setup(self) -> ServerSetup:
        """What a server at a URL was started with."""

    @abstractmethod
    async def sample(self, request: GenerateRequest, max_tokens: int, request_id: str, sampled: Sampled) -> str:
        """Let the server sample at most `max_tokens`, and add each part to `sampled` as soon as it comes. Returns how
        the generation ended: `stop`, `length`, or the server's own word for anything else."""

    @abstractmethod
    async def abort(self, request_ids: list[str]) -> None:
        """Let the server end these requests, with what they have sampled; those that it does not know are no error."""

    @abstractmethod
    async def send_folder(self, folder: Path, version: int) -> None:
        """Let the server load a whole model's weights as a version; it goes on with its requests afterwards, and
        computes nothing with prefixes that other weights computed."""

    async def check_ticket(self, ticket: Ticket, version: int) -> None:  # noqa: B027 - most servers take all
        """Raise `EngineError` if the server cannot fetch these weights; it is called before the server is touched."""

    async def send_ticket(self, ticket: Ticket, version: int) -> Fingerprint:
        """Let the server fetch weights by one of its transports that is neither `memory` nor `folder`; returns the
        fingerprint of what the trainer sent."""
        raise NotImplementedError(f"{self.server} names the transport '{ticket.transport}', and cannot receive by it")

    @abstractmethod
    async def ask_fingerprint(self) -> Fingerprint:
        """The fingerprint (`fingerprint.py`) of the weights that the server holds at this moment."""

    async def ask_metrics(self) -> dict[str, float]:
        """The server's own counters, under names that begin with `server_`. Raises `EngineError` if it does not serve,
        and `NoAnswer` if it may be busy."""
        return {}
