"""The charts of where engine and trainer differ: by the place of a token in its sequence, and by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from ale_report.chart import Bar, BarChart
from ale_report.facts import RL_STAGE, Metrics

_RANGES = (
    ("mismatch_place/", "Engine and trainer by place in the sequence", "mean difference in nats, by token"),
    ("mismatch_chunk/", "Engine and trainer by chunk", "mean difference in nats, by the chunk's number"),
)
"""The metrics, each named after its range, such as `0-127`; the title and the unit of their chart."""


def mismatch_charts(metrics: Metrics, section: str) -> Iterator[BarChart]:
    """Yield a chart of each kind of range that has numbers."""
    rl = metrics.get(RL_STAGE, {})
    for prefix, title, unit in _RANGES:
        found = {name.removeprefix(prefix): points for name, points in rl.items() if name.startswith(prefix)}
        newest = max((step for points in found.values() for step, _ in points), default=0)
        bars = tuple(
            Bar(name.replace("-", " to "), (fmean(value for _, value in points), dict(points).get(newest)))
            for name, points in sorted(found.items(), key=lambda item: int(item[0].partition("-")[0]))
        )
        if bars:
            series = ("mean of all steps", f"step {newest}")
            yield BarChart(f"rl-{prefix.strip('/')}", section, title, unit, series, bars)
