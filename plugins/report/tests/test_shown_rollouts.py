"""Which rollouts are in the page, and how each turn of theirs is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ale.messages import Message, ToolCall
from ale.store.run_store import RunStore
from ale.trajectory import Chunk, Observation, Score, Sequence
from ale_report import trajectories as report_trajectories
from ale_report.page import write_report
from ale_report.page_json import encode, show_controls
from ale_report.trajectories import choose_trajectories, view_of

from .conftest import Make, page_data


def test_a_turn_carries_its_chunk_and_its_observation(trajectory: Make) -> None:
    view = view_of(trajectory())
    (line,) = view.lines
    assert [turn.role for turn in line.turns] == ["system", "user", "assistant", "tool", "assistant"]
    call, answer, last = line.turns[2:]
    assert call.calls[0].arguments == (("command", "ls"),)
    assert call.chunk is not None
    assert (call.chunk.tokens, call.chunk.mean, call.chunk.error) == (2, -0.3, "execution_failed")
    assert (answer.tool, answer.exit_code, answer.seconds) == ("shell", 0, 0.01)
    assert last.chunk is not None
    assert (last.chunk.versions, last.chunk.finish) == ((3, 4), "length")


def test_an_answer_that_the_model_never_saw_is_shown_and_marked(trajectory: Make) -> None:
    seen = trajectory()
    unseen = Observation(1, "finish", {}, "done", None, 0.0)
    view = view_of(replace(seen, observations=(*seen.observations, unseen)))
    assert (view.lines[0].turns[-1].text, view.lines[0].turns[-1].unseen) == ("done", True)


def test_a_branch_shows_only_what_is_new(trajectory: Make) -> None:
    t = trajectory()
    (first,) = t.sequences
    branch = Sequence((1, 2, 3), (*first.messages[:4], Message("assistant", "another way")))
    chunk = Chunk(2, 1, 2, 3, (-0.1,), (3,), "stop", turn=4)
    line = view_of(replace(t, sequences=(first, branch), chunks=(*t.chunks, chunk))).lines[1]
    assert (line.shared, line.shared_with) == (4, 0)
    assert [turn.text for turn in line.turns] == ["another way"]
    assert line.turns[0].chunk is not None
    assert line.turns[0].chunk.index == 2


@pytest.mark.parametrize("arguments", ["not json", "[1]", "[" * 100_000])
def test_arguments_that_are_no_object_are_shown_as_they_are(trajectory: Make, arguments: str) -> None:
    message = Message("assistant", "", (ToolCall("c", "shell", arguments),))
    t = trajectory(sequences=(Sequence((1,), (message,)),), chunks=())
    call = view_of(t).lines[0].turns[0].calls[0]
    assert call.raw.startswith(arguments[:100])
    assert call.arguments == ()


def test_long_texts_lose_their_middle_and_controls_are_shown(trajectory: Make) -> None:
    t = replace(trajectory(), reward=Score(1.0, True, "x" * 50_000 + "\x1b[31m\u202e"))
    detail = view_of(t).detail
    assert len(detail) < 9_000
    assert "42,006 characters left out" in detail
    assert detail.endswith("␛[31m[U+202E]")
    assert show_controls("a\tb\n\x00") == "a\tb\n␀"


def test_the_choice_keeps_the_last_evaluation_faults_and_a_spread_sample(tmp_path: Path, trajectory: Make) -> None:
    with RunStore.create(tmp_path) as store:
        for step in range(1, 31):
            for i in range(20):
                store.add_trajectory(trajectory(f"r{step}.{i}", float(i == 19), step=step))
        for i in range(60):
            store.add_trajectory(trajectory(f"no{i}", step=1, rejected="no reward"))
        for step in (0, 30):
            for i in range(100):
                store.add_trajectory(trajectory(f"e{step}.{i}", stage="eval", step=step))
    path = write_report(tmp_path)
    shown = page_data(path)["trajectories"]
    assert sum(t["stage"] == "eval" and t["step"] == 30 for t in shown) == 100
    assert sum(t["outcome"] == "rejected" for t in shown) == report_trajectories.MAX_FAULTS
    rl = [t for t in shown if t["stage"] == "rl"]
    assert {t["step"] for t in rl} == set(range(1, 31))
    assert {(t["step"], t["outcome"]) for t in rl} >= {(step, "passed") for step in range(1, 31)}
    assert len(shown) <= report_trajectories.MAX_SAMPLE + 100
    assert f"{len(shown)} of 860 rollouts" in path.read_text()


def test_the_page_stays_small_with_huge_conversations(
    tmp_path: Path, trajectory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_trajectories, "SAMPLE_BYTES", 100_000)
    with RunStore.create(tmp_path) as store:
        for i in range(60):
            messages = (Message("user", f"{i}" + "y" * 9_000), Message("assistant", "é" * 3_000))
            store.add_trajectory(trajectory(f"t{i}", step=i, sequences=(Sequence((1,), messages),), chunks=()))
    with RunStore.open(tmp_path) as store:
        shown = choose_trajectories(store)
    assert 2 <= len(shown) < 10
    assert len(encode(shown)) < 110_000
