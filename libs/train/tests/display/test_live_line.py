"""These tests check the live line at a terminal, loaded as the core loads it."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TextColumn

from ale_train.display.live_line import LiveLine
from ale_train.display.open_display import open_display
from ale_train.display.plain_lines import PlainLines


class Terminal(io.StringIO):
    """Behaves like a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_the_live_line_and_a_file_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, expected in ((Terminal(), LiveLine), (io.StringIO(), PlainLines)):
        monkeypatch.setattr(sys, "stderr", stream)
        with open_display() as progress:
            assert type(progress) is expected
            progress.stage("evaluation", 4)
            progress.note("Something that one should know.")
        assert "Something that one should know." in stream.getvalue()


def test_each_stage_has_its_bar_and_the_figures_stay() -> None:
    bar = Bar(TextColumn("{task.description}"), console=Console(file=io.StringIO()))
    line = LiveLine(bar)
    line.advance()
    line.numbers(success=0.5)
    line.stage("one", 4)
    line.stage("two", 0)
    line.advance(2)
    line.numbers(loss=1.25)
    (task,) = bar.tasks
    assert (task.description, task.total, task.completed) == ("two", None, 2)
    assert task.fields["figures"] == "success 0.50  loss 1.250"


def test_plain_lines_show_a_stage_that_takes_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    lines = PlainLines(interval_s=0.0)
    lines.stage("rollouts", 8)
    lines.numbers(success=0.25, remaining_s=9.0)
    lines.advance(3)
    assert capsys.readouterr().err.endswith("rollouts: 3/8  success 0.25  9 s of RL left\n")
