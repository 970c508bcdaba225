"""The pool gives its durations as quantiles."""

from __future__ import annotations

import time

from ale.rollout.sandbox_pool.times import Times


def test_times_are_given_as_quantiles() -> None:
    times = Times("wait_s")
    assert times.metrics() == {}
    for seconds in range(100):
        times.add(time.monotonic() - seconds)
    found = {name: round(value) for name, value in times.metrics().items()}
    assert found == {"wait_s_p50": 50, "wait_s_p95": 94, "wait_s_max": 99}
