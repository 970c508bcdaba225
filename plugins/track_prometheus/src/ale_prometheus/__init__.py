"""This package serves the latest metrics of a run for Prometheus."""

from ale_prometheus.tracker import PrometheusTracker

__all__ = ["PrometheusTracker"]
