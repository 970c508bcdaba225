"""The latest value of each metric of a run, as the gauges that Prometheus reads.

The metric `bubble/trainer` of the stage `rl` is `ale_bubble_trainer{run="...",stage="rl"}`. A metric that a step does
not have keeps its value of an earlier step. Gauges may be read in any thread while they are set in another.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

log = logging.getLogger("ale.prometheus")
LABELS = ("run", "stage")


def gauge_name(metric: str) -> str:
    """Return the name of a metric's gauge: `ale_` and the metric, with `_` for each character that is not allowed."""
    metric = metric.replace("@", "_at_").replace("^", "_all_")  # pass@2 and pass^2 stay two names
    return "ale_" + re.sub(r"[^a-zA-Z0-9_]", "_", metric)


class Gauges:
    """The gauges of one run, beside those of its process (CPU seconds, memory, open files)."""

    def __init__(self, run: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.steps: Mapping[str, int] = {}
        """The last step of each stage."""
        self._run = run
        self._step = Gauge("ale_step", "The last finished step of a stage.", LABELS, registry=self.registry)
        self._gauges: dict[str, Gauge | None] = {}
        """None for a metric whose name another one has."""

    def update(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a finished step; numbers that are not finite too, for which Prometheus has names."""
        for metric, value in metrics.items():
            if metric not in self._gauges:
                self._gauges[metric] = self._make_gauge(metric)
            gauge = self._gauges[metric]
            if gauge is not None:
                gauge.labels(self._run, stage).set(value)
        self._step.labels(self._run, stage).set(step)
        self.steps = {**self.steps, stage: step}  # a new one: another thread may be reading the old one

    def _make_gauge(self, metric: str) -> Gauge | None:
        name = gauge_name(metric)
        try:
            return Gauge(name, f"The metric {metric} (docs/metrics.md).", LABELS, registry=self.registry)
        except ValueError:  # the registry has the name
            log.warning("prometheus leaves out the metric '%s': another one is already called %s.", metric, name)
            return None
