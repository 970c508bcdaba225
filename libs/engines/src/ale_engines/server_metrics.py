"""Reads a server's own counters from the text that it has for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping

SAMPLE = re.compile(r"^([\w:]+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


def sum_samples(text: str, names: Mapping[str, str]) -> dict[str, float]:
    """Return the metrics in `text` that `names` has, under the names that it gives them, summed up over their labels.

    The format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format."""
    sums: dict[str, float] = {}
    for name, value in SAMPLE.findall(text):
        if name in names:
            sums[names[name]] = sums.get(names[name], 0.0) + float(value)
    return sums
