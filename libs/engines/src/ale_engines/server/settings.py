"""The settings that engines which run as servers have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from ale.specs.driver import PluginConfig

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
OF_A_START = {"tensor_parallel", "gpu_memory", "threads", "arguments", "environment"}
"""Settings that only the start of a server needs."""


class ServerSettings(PluginConfig):
    """Settings of an engine that runs as a server; the model comes from the run."""

    python: Path | None = Field(
        None,
        description="The Python of an environment that holds the server; by default the one that `ale engine install` "
        "made.",
    )
    url: str | tuple[str, ...] = Field(
        "", description="The address of a server that runs already, or of several, instead of those that ALE starts."
    )
    replicas: int = Field(1, ge=1, description="Servers to start, each with the whole model.")
    tensor_parallel: int = Field(1, ge=1, description="GPUs over which each server splits the model.")
    dtype: DtypeName = Field(
        "auto",
        description="Type of weights and cache. auto: float32 on the CPU; on a GPU, the type in which the folder was "
        "saved; at a `url`, the server's.",
    )
    max_context: int = Field(
        2048, gt=1, description="Tokens of one request; the model's own limit applies if it is lower."
    )
    max_batch: int = Field(64, gt=0, description="Requests that a server samples at the same time.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto takes a GPU if there is one, and the server's build for it."
    )
    gpu_memory: float = Field(
        0.85, gt=0, le=1, description="Share of the GPU's memory that a server takes (weights, cache and work space)."
    )
    threads: int = Field(0, ge=0, description="CPU threads of each server; 0: half of those that there are.")
    arguments: tuple[str, ...] = Field((), description="Further arguments of the server's command line, as they are.")
    environment: dict[str, str] = Field({}, description="Further environment variables of the server.")
    start_timeout_s: float = Field(
        600.0, gt=0, description="Time in which a server must have loaded its model, and one at a `url` must answer."
    )
    request_timeout_s: float = Field(
        1800.0, gt=0, description="Time in which a generation, or an update of the weights, must have finished."
    )

    @model_validator(mode="after")
    def check_url(self) -> Self:
        """Servers that run already are not started from an environment, and are as many as their addresses."""
        if self.url and self.python is not None:
            raise ValueError("give `python` (ALE starts the server) or `url` (it runs already), not both")
        if self.url and self.replicas > 1:
            raise ValueError("`url` names as many servers as it has addresses; leave `replicas` at 1")
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"`url` is an address such as http://host:8000, not {url}")
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("`url` names a server twice")
        if self.url and (unused := sorted(self.model_fields_set & OF_A_START)):
            raise ValueError(f"the server at `url` has been started already: {', '.join(unused)} would change nothing")
        return self

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of servers that run already; none if ALE starts them."""
        return tuple(url for url in ((self.url,) if isinstance(self.url, str) else self.url) if url)
