"""Tells ROCK's client of an object storage, over which it moves large files between its machine and a sandbox.

The service itself stores nothing there. A client asks for the storage's address and for credentials (`/get_token`),
then both sides of a transfer speak with the storage: the client, and programs in the sandbox. So the sandbox needs a
network policy that lets it. The credentials come from a command of the operator, because each storage has its own way
to make short-lived ones; they are kept until shortly before they expire.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator
from yarl import URL

from ale_rock.schemas import SERVICE_ERROR, RockError

COMMAND_S = 30.0
EARLY = timedelta(minutes=10)
"""Credentials are replaced so long before they expire; ROCK's client does not use their last five minutes."""
LIFE = timedelta(hours=1)
"""How long a client may use credentials that do not say when they expire."""
REGION = re.compile(r"(?:^|\.)oss-([a-z0-9-]+?)(?:-internal)?\.")
"""The region in the name of a host of Alibaba Cloud OSS."""


class ObjectStorage(BaseModel):
    """The setting `object_storage`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(
        description="https://HOST/BUCKET, or https://HOST/BUCKET/PREFIX, of a storage that takes the signatures of "
        "Alibaba Cloud OSS, with which ROCK's client signs."
    )
    credentials: str = Field(
        description="Command that prints JSON with AccessKeyId, SecretAccessKey, SessionToken and Expiration, as a "
        "`credential_process` of AWS does; every client that may start sandboxes gets them."
    )
    region: str | None = Field(None, description="Null: the region in the host's name, if it has one.")

    @field_validator("url")
    @classmethod
    def _names_a_bucket(cls, value: str) -> str:
        url = URL(value)
        if url.scheme not in ("http", "https") or not url.host or len(url.parts) < 2 or not url.parts[1]:
            raise ValueError(f"{value!r} names no bucket; write https://HOST/BUCKET or https://HOST/BUCKET/PREFIX")
        if url.host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
            raise ValueError(
                f"{url.host} is Amazon's S3, which refuses the signatures of ROCK's client: they are those of Alibaba "
                "Cloud OSS; name a storage that takes these"
            )
        return value

    @field_validator("credentials")
    @classmethod
    def _is_a_command(cls, value: str) -> str:
        if not shlex.split(value):
            raise ValueError("the command is empty")
        return value

    def place(self) -> dict[str, str]:
        """Return where the storage is, in the words of ROCK's client."""
        url = URL(self.url)
        found = REGION.search(f"{url.host}.")
        return {
            "Endpoint": str(url.origin()),
            "Bucket": url.parts[1],
            "Prefix": "/".join(url.parts[2:]).strip("/"),
            "Region": self.region or (found[1] if found else "default"),
        }


class Credentials(BaseModel):
    """What the command prints."""

    model_config = ConfigDict(populate_by_name=True)

    key: str = Field(alias="AccessKeyId", min_length=1)
    secret: str = Field(alias="SecretAccessKey", min_length=1, repr=False)
    token: str = Field("", alias="SessionToken", repr=False)
    expires: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC) + LIFE, alias="Expiration")


class StorageTokens:
    """Answers `/get_token`."""

    def __init__(self, storage: ObjectStorage | None) -> None:
        self._storage = storage
        self._kept: Credentials | None = None
        self._asking = asyncio.Lock()

    async def token(self) -> dict[str, Any] | None:
        """Return address and credentials; None if no storage is configured. Raises `RockError`."""
        if self._storage is None:
            return None
        async with self._asking:
            if self._kept is None or self._kept.expires - datetime.now(UTC) < EARLY:
                self._kept = await ask_for_credentials(self._storage.credentials)
            found = self._kept
        return {
            "AccessKeyId": found.key,
            "AccessKeySecret": found.secret,
            "SecurityToken": found.token,
            "Expiration": found.expires.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            **self._storage.place(),
        }


async def ask_for_credentials(command: str) -> Credentials:
    """Run the command for credentials. Raises `RockError`, which repeats nothing of its output: that may be secret."""
    try:
        program = await asyncio.create_subprocess_exec(
            *shlex.split(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise _without_credentials(f"cannot be run ({error.strerror or error})") from None
    try:
        async with asyncio.timeout(COMMAND_S):
            output, _ = await program.communicate()
    except TimeoutError:
        raise _without_credentials(f"did not end within {COMMAND_S:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            program.kill()
    if program.returncode:
        raise _without_credentials(f"ended with exit code {program.returncode}")
    try:
        return Credentials.model_validate_json(output)
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(map(str, wrong["loc"])) or "its output"
        raise _without_credentials(f"printed no credentials ({where}: {wrong['msg']})") from None


def _without_credentials(why: str) -> RockError:
    return RockError(
        f"The service has no credentials for its object storage: the command in object_storage.credentials {why}. Its "
        "operator can mend it; without it, uploads go through this service.",
        SERVICE_ERROR,
    )
