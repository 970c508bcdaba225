"""What a command shows of warnings: equal ones are counted, not repeated."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from ale.cli.messages import MOST_COUNTED, CountedWarnings, configure_messages


@contextmanager
def configured() -> Iterator[list[str]]:
    """What is shown once messages are configured; pytest's own handlers are put aside meanwhile."""
    logger, root = logging.getLogger("ale"), logging.getLogger()
    handlers, propagates, of_root = logger.handlers[:], logger.propagate, root.handlers[:]
    last, excepthook, showwarning = logging.lastResort, sys.excepthook, warnings.showwarning
    found: list[str] = []
    try:
        root.handlers[:] = []
        configure_messages(found.append, lambda text: text.replace("secret", "***"))
        yield found
    finally:
        logger.handlers[:], logger.propagate, root.handlers[:] = handlers, propagates, of_root
        logging.lastResort, sys.excepthook, warnings.showwarning = last, excepthook, showwarning


def test_equal_warnings_are_counted() -> None:
    logger = logging.getLogger("ale.rollout")
    with configured() as shown:
        for i in range(12):
            logger.warning("episode %s failed: no reward", i, extra={"same_as": "no reward"})
        logger.warning("another")
    assert shown == [
        "warning: episode 0 failed: no reward",
        "warning: episode 9 failed: no reward (10 times by now)",
        "warning: another",
    ]


def test_warnings_that_differ_in_an_id_are_equal() -> None:
    with configured() as shown:
        for i in range(12):
            logging.getLogger("ale.pool").warning("the sandbox ale-%012x was not removed", i)
    assert len(shown) == 2
    assert shown[1] == "warning: the sandbox ale-000000000009 was not removed (10 times by now)"


def test_a_users_own_warnings_are_counted_too_and_lose_secrets() -> None:
    mine = logging.getLogger("my_reward")
    with configured() as shown, warnings.catch_warnings():
        warnings.simplefilter("always")
        for _ in range(12):
            mine.warning("the judge is slow: secret")
            mine.info("it is not shown")
            warnings.warn("it will go away", UserWarning, stacklevel=1)
    logged = [text for text in shown if "judge" in text]
    assert logged == ["warning: the judge is slow: ***", "warning: the judge is slow: *** (10 times by now)"]
    warned = [text for text in shown if "go away" in text]
    assert len(warned) == 2
    assert warned[0].startswith("warning: it will go away (UserWarning, ")
    assert warned[1].endswith(" (10 times by now)")


def test_a_logger_with_a_handler_of_its_own_is_left_alone() -> None:
    mine, records = logging.getLogger("my_library"), list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    mine.addHandler(handler)
    try:
        with configured() as shown:
            mine.warning("I show this myself")
    finally:
        mine.removeHandler(handler)
    assert (len(records), shown) == (1, [])


def test_a_log_call_whose_arguments_do_not_fit_is_shown() -> None:
    with configured() as shown:
        logging.getLogger("ale.x").warning("%d of %d", "one")
    assert len(shown) == 1
    assert shown[0].startswith("warning: %d of %d (")


def test_a_server_does_not_count_for_ever() -> None:
    shown: list[str] = []
    counted = CountedWarnings(shown.append, str)
    for i in range(MOST_COUNTED + 5):
        counted.show(f"call {i}", f"call {i}")
    assert len(shown) == MOST_COUNTED + 5
    assert len(counted._counts) == 5
