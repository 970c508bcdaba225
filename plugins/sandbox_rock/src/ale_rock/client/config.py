"""The settings of the provider `rock`, and the headers of its requests."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from ale.specs.driver import PluginConfig

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_URL = "http://127.0.0.1:8080"
T = TypeVar("T")


class RockConfig(PluginConfig):
    """Settings of the provider `rock`."""

    url: str = Field(DEFAULT_URL, description="URL of the service, as `ale rock serve` prints it.")
    token: SecretStr | None = Field(
        None, description="The user's token, as ${oc.env:NAME}; null: the service listens on this machine alone."
    )
    user: str | None = Field(None, min_length=1, description="Whose sandboxes they are: quotas are per user.")
    namespace: str | None = Field(None, min_length=1, description="Team or project: the queue is fair between them.")
    cluster: str = Field(
        "default", min_length=1, description="The header X-Cluster, by which gateways choose a service."
    )
    start_timeout_s: float = Field(
        300.0, gt=0, description="Seconds for a start, the wait in the service's queue included."
    )
    idle_s: float | None = Field(
        21_600.0,
        gt=0,
        description="The service removes a sandbox that received no request for so long, unless its spec says "
        "otherwise. So the sandboxes of a machine that is lost are removed, too. Null: never.",
    )

    @field_validator("token", "user", "namespace", "cluster")
    @classmethod
    def _fits_into_a_header(cls, value: T) -> T:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if isinstance(text, str) and not text.isprintable():
            raise ValueError("it holds a character that cannot be printed, such as the end of a line or a NUL byte")
        return value

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if (
            not value.isprintable()
            or parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.query
            or parts.fragment
        ):
            raise ValueError(f"{value!r} is no URL of a service; write {DEFAULT_URL}")
        return value


def headers_of(config: RockConfig) -> dict[str, str]:
    """Return the headers of every request."""
    headers = {"X-Cluster": config.cluster}
    if config.token is not None:
        headers["Authorization"] = f"Bearer {config.token.get_secret_value()}"
    if config.user is not None:
        headers["X-User-Id"] = config.user
    if config.namespace is not None:
        headers["X-Namespace"] = config.namespace
    return headers
