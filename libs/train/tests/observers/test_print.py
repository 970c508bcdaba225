"""A step is one line, at a terminal above the live line and elsewhere a plain one."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TextColumn

from ale.registry.hooks import Hooks
from ale.specs.driver import DriverContext
from ale_train.display.live_line import LiveLine
from ale_train.observers.print_metrics import PrintConfig, PrintTracker
from ale_train.workbench.channel import RunChannel

METRICS = {"loss": -0.01234, "success": 0.5, "success/a": 1.0, "success/b": 0.0, "seconds": 1234.5, "reward": 0.25}


def lines(*steps: tuple[str, int, dict[str, float]], **settings: object) -> list[str]:
    """What is printed for these steps with these settings."""
    printed: list[str] = []
    channel = RunChannel(lambda text: text.replace("hunter2", "${oc.env:KEY}"), show=printed.append)
    tracker = PrintTracker(PrintConfig.model_validate(settings), DriverContext(channel=channel))
    hooks = Hooks([("print", tracker)])
    for stage, step, metrics in steps:
        hooks.call("ale_step_finished", stage=stage, step=step, metrics=metrics)
    return printed


def test_a_step_is_one_line_with_the_usual_metrics_that_it_has() -> None:
    assert lines(("rl", 3, METRICS), ("eval", -1, {"success": 1.0}), ("sft", 0, {"seconds": 2.0})) == [
        "rl 3: reward 0.25, success 0.5, loss -0.0123",
        "eval -1: success 1",
    ]


def test_the_metrics_are_those_that_the_settings_name_each_once_and_in_their_order() -> None:
    (line,) = lines(("rl", 3, METRICS), metrics=["success/*", "seconds", "success*"])
    assert line == "rl 3: success/a 1, success/b 0, seconds 1.23e+03, success 0.5"


def test_a_secret_in_a_metrics_name_is_not_printed() -> None:
    assert lines(("rl", 3, {"success/hunter2": float("nan")}), metrics=["*"]) == ["rl 3: success/${oc.env:KEY} nan"]


def test_a_line_does_not_tear_the_live_line_of_a_terminal() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60, legacy_windows=False)
    with Bar(TextColumn("{task.description}"), console=console, auto_refresh=False) as bar:
        live = LiveLine(bar)
        live.stage("training", 4)
        channel = RunChannel(lambda text: text, show=live.note)
        tracker = PrintTracker(PrintConfig(), DriverContext(channel=channel))
        for step in (1, 2):
            tracker.ale_step_finished("rl", step, {"success": 0.5})
            bar.refresh()
    rows = [row for row in screen.getvalue().split("\n") if "rl " in row]
    assert len(rows) == 2
    for row in rows:
        erased, _, printed = row.rpartition("\x1b[2K")
        assert erased, "the live line is erased before the note is written in its place"
        assert printed.strip().endswith("success 0.5")
