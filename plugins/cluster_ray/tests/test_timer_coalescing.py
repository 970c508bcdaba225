"""What is due every now and then is due at the same moments, at least half a period later."""

from __future__ import annotations

import pytest

from ale_ray.timer_coalescing import next_tick


@pytest.mark.parametrize("period_s", [0.04, 0.25, 2.0])
def test_the_next_beat_is_half_a_period_to_one_and_a_half_later_and_that_of_its_neighbours_too(period_s: float) -> None:
    for number in range(1000):
        time = 1.8e9 + number * period_s / 7
        beat = next_tick(time, period_s)
        assert 0.49 <= (beat - time) / period_s <= 1.51
        assert beat == next_tick(beat - period_s, period_s) == next_tick(beat - period_s / 2 - 1e-3, period_s)
