"""Settings of where rollouts start are refused where they would do nothing."""

from __future__ import annotations

from typing import Any

import pytest

from ale_ipa import IPA


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"start": "beginning", "lambda_il": 0.1}, "lambda_il does nothing with start 'beginning'"),
        ({"start": "beginning", "refresh_every": 3}, "refresh_every does nothing"),
        ({"start": "rollback", "anchors": 3}, "set start to 'parallel'"),
        ({"anchor_choice": "random", "start": "rollback"}, "anchor_choice does nothing"),
        ({"advance_at": 0.4}, "set start to 'rollback'"),
        ({"start": "parallel", "fork_drop": 0.4}, "fork_drop does nothing"),
        ({"lambda_il": 0, "il_when": "always"}, "il_when does nothing with lambda_il 0"),
        ({"lambda_il": 0, "lambda_rl": 0.5}, "lambda_rl does nothing"),
        ({"experts": {}, "anchors": 9}, "raise group_size to 9"),
        ({"experts": {}, "anchors": 5, "return_signal": "group_centered"}, "raise group_size to 10"),
        ({"experts": {}, "start": "beginning"}, "experts does nothing with start 'beginning'"),
        ({"experts": {}, "group_size": 1}, "group_size of at least 2"),
        ({"experts": {}, "group_size": 3, "return_signal": "group_centered"}, "group_size of at least 4"),
        ({"start": "parallel"}, "start is for rollouts that start from experts, and there are none: give experts"),
        ({"start": "rollback", "group_size": 1}, "start is for rollouts that start from experts"),
        ({"lambda_il": 0.2}, "lambda_il is for rollouts that start from experts"),
        ({"experts": None, "refresh_every": 5}, "refresh_every is for rollouts that start from experts"),
        ({"experts": {"demonstrations": False}}, "experts has no source"),
        ({"experts": {"replay_ignore": ["("]}}, "is no regular expression"),
        ({"anchors": 1}, "greater than or equal to 2"),
        ({"lambda_rl": 0}, "greater than 0"),
    ],
)
def test_settings_of_starts_that_would_do_nothing_are_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        IPA.Config(**config)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"group_size": 1},
        {"start": "beginning"},
        {"experts": {}},
        {"experts": None},
        {"experts": {"demonstrate": 1}},
    ],
)
def test_settings_that_ask_for_what_there_is_are_taken(config: dict[str, Any]) -> None:
    assert IPA.Config(**config)
