"""The observer `print`: one line for each `ale_step_finished`, as a note of the run's progress display.

A note never tears the live line of a terminal, and is a plain line with the time of day in a log file.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import ClassVar

from pydantic import Field

from ale.specs.driver import PluginConfig
from ale.specs.events import Observer, hookimpl

__all__ = ["PrintTracker"]

METRICS = ("reward", "success", "loss", "kl_ref", "entropy", "chunk_tokens", "tokens_per_s")


class PrintConfig(PluginConfig):
    """Settings of the observer `print`."""

    metrics: tuple[str, ...] = Field(
        METRICS,
        min_length=1,
        description="Names of the metrics to print, in their order; '*' stands for any part of a name.",
    )


class PrintTracker(Observer):
    """Prints one line of metrics for each training step and evaluation."""

    api_version = ">=1.0,<1.2"
    Config: ClassVar[type[PluginConfig]] = PrintConfig
    config: PrintConfig

    @hookimpl
    def ale_step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Print the chosen metrics of the step, if it has any."""
        found = [name for pattern in self.config.metrics for name in metrics if fnmatchcase(name, pattern)]
        figures = ", ".join(f"{name} {metrics[name]:.3g}" for name in dict.fromkeys(found))
        if figures:
            self.context.channel.event("note", text=self.context.channel.redact(f"{stage} {step}: {figures}"))
