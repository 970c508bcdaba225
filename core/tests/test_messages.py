"""What a command shows of warnings: equal ones are counted, not repeated."""

from __future__ import annotations

import logging

import pytest

from ale.cli.messages import configure_messages


def test_equal_warnings_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.excepthook", None)
    logger = logging.getLogger("ale")
    handlers, propagates = logger.handlers[:], logger.propagate
    shown: list[str] = []
    try:
        configure_messages(shown.append, lambda text: text)
        for i in range(12):
            logger.warning("episode %s failed: no reward", i, extra={"same_as": "no reward"})
        logger.warning("another")
    finally:
        logger.handlers[:], logger.propagate = handlers, propagates
    assert shown == [
        "warning: episode 0 failed: no reward",
        "warning: episode 9 failed: no reward (10 times by now)",
        "warning: another",
    ]
