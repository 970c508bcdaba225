"""The settings of a worker."""

from __future__ import annotations

import socket
import tempfile
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from ale_rock.schemas import Name


class WorkerSettings(BaseModel):
    """How a worker names itself, where its admin is, what it offers, and what it refuses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = Field(
        default_factory=socket.gethostname, description="The worker's name in the service; one of a kind."
    )
    url: str = Field("http://127.0.0.1:8090", description="Where the admin reaches this worker.")
    token: SecretStr | None = Field(None, description="What the admin sends as bearer; null: no token is asked for.")
    admin_url: str | None = Field(None, description="URL of the admin; null: the worker serves without one.")
    admin_token: SecretStr | None = Field(None, description="What the worker sends to the admin as bearer.")
    provider_name: str = Field("local", description="What the provider is called in `ale rock status`.")
    cpus: float | None = Field(None, gt=0, description="Cores that sandboxes may use; null: all.")
    memory_bytes: int | None = Field(None, gt=0, description="Memory that sandboxes may use; null: all.")
    disk_bytes: int | None = Field(None, gt=0, description="Disk that sandboxes may use; null: all that is free.")
    gpus: int | None = Field(None, ge=0, description="GPUs that sandboxes may use; null: all.")
    images: tuple[str, ...] = Field((), description="Images that are known to be on this machine.")
    warm: dict[str, Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict,
        description="How many sandboxes are kept ready of each kind that was asked for, by image; `*`: of any image.",
    )
    spool_folder: str = Field(
        default_factory=tempfile.gettempdir,
        description="Where large uploads lie while they arrive; a folder on a disk.",
    )
    max_body_bytes: int = Field(64 << 20, gt=0, description="Largest JSON body.")
    max_file_bytes: int = Field(16 << 30, gt=0, description="Largest file of an upload.")
    max_read_bytes: int = Field(64 << 20, gt=0, description="Largest file that `read_file` returns.")

    @property
    def host_ip(self) -> str:
        """The address in `url`, where it is one; else that of this machine's name."""
        host = urlsplit(self.url).hostname or "127.0.0.1"
        try:
            return socket.gethostbyname(host)
        except OSError:
            return "127.0.0.1"


def secret(value: SecretStr | None) -> str | None:
    """Return the text of a token."""
    return None if value is None else value.get_secret_value()
