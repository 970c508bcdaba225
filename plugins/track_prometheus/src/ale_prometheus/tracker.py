"""The observer `prometheus`: it serves the latest metrics of a run over HTTP, as long as the run lasts.

1. `start` listens, so that a port that is taken refuses the run before it begins; `close` ends the server.
2. Each `ale_step_finished` sets the gauges (`gauges.py`), which the server's threads read (`server.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from html import escape
from typing import ClassVar

from pydantic import Field

from ale.errors import ConfigError
from ale.registry.validation import one_line_error
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.events import Observer, hookimpl
from ale_prometheus.gauges import Gauges
from ale_prometheus.server import MetricsServer


class PrometheusConfig(PluginConfig):
    """Settings of the observer `prometheus`."""

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen at; 0.0.0.0: at all of the machine's.")
    port: int = Field(9464, ge=0, le=65535, description="Port to listen at; 0: a free one, which a note names.")


class PrometheusTracker(Observer):
    """Serves the metrics of a run for Prometheus."""

    api_version = ">=1.0,<1.2"
    Config: ClassVar[type[PluginConfig]] = PrometheusConfig
    config: PrometheusConfig

    def __init__(self, config: PrometheusConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self._gauges = Gauges(context.run_id)
        self._server: MetricsServer | None = None

    async def start(self) -> None:
        """Listen. Raises `ConfigError` where that is not possible."""
        host, port = self.config.host, self.config.port
        try:
            self._server = MetricsServer(host, port, self._gauges.registry, self._page)
        except OSError as error:
            raise ConfigError(
                f"The observer 'prometheus' cannot listen at {host}, port {port}: "
                f"{one_line_error(error.strerror or error)}. Give it another 'port' (0: a free one) or 'host'."
            ) from None

    @hookimpl
    def ale_run_started(self) -> None:
        """Say where the metrics are."""
        if self._server is not None:
            self.context.channel.event("note", text=f"Prometheus finds the metrics at {self._server.url}metrics.")

    @hookimpl
    def ale_step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Set the gauges; a name may hold what a task is called, and so a secret."""
        redact = self.context.channel.redact
        self._gauges.update(stage, step, {redact(name): value for name, value in metrics.items()})

    async def close(self) -> None:
        """End the server and its threads."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.close)

    def _page(self) -> str:
        """Return the page at `/`: the run, its folder, its steps, and the way to the metrics."""
        run, folder = self.context.run_id, self.context.channel.redact(str(self.context.run_dir or ""))
        steps = "".join(f"<li>{escape(stage)}: step {step}</li>" for stage, step in self._gauges.steps.items())
        return (
            f"<!doctype html><title>{escape(run)}</title><h1>{escape(run)}</h1><p>{escape(folder)}</p>"
            f'<ul>{steps}</ul><p><a href="/metrics">Metrics for Prometheus</a></p>'
        )
