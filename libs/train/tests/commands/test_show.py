"""`ale show`: what a person, a pipe and a program see of runs that are done, go on, were killed, or hold odd text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ale.errors import ConfigError
from ale.messages import Message, ToolCall
from ale.store.run_store import DB_NAME, SUMMARY_NAME, RunStore
from ale.trajectory import Chunk, ChunkError, Failure, Observation, Score, Sequence, Trajectory
from ale_train.commands.show_command import show
from ale_train.show.episode_rows import Filters
from ale_train.show.lines import Table, printable

CONFIG = "rollout: {max_calls: 2}\nrl: {steps: 4}\n"
Show = Callable[..., str]


def episode(number: int, **changes: Any) -> Trajectory:
    """An episode of two turns: a command, and a last word."""
    call = ToolCall("c1", "shell", '{"command": "ls\\nwc -l", "lines": 3}')
    messages = (
        Message("system", "You are an agent."),
        Message("user", "Count the files."),
        Message("assistant", "I count.", (call,), reasoning="hm, [bold]count[/bold]"),
        Message("tool", "3 files", tool_call_id="c1"),
        Message("assistant", "There are 3."),
    )
    trajectory = Trajectory(
        id=f"{number:04d}cafe",
        task_id=f"count-{number}",
        split="train",
        stage="rl",
        step=1,
        group="g",
        seed=number,
        policy_version=1,
        sequences=(Sequence(tuple(range(30)), messages),),
        chunks=(
            Chunk(0, 0, 10, 14, (-0.5,) * 4, (1,) * 4, "stop", turn=2, seconds=0.25),
            Chunk(1, 0, 20, 30, (-0.5,) * 10, (1,) * 10, "stop", turn=4),
        ),
        observations=(Observation(0, "shell", {"command": "ls"}, "3 files", 0, 0.5),),
        reward=Score(1.0, True, "all tests passed", 0.1, parts={"format": 0.25, "tests": 0.75}),
        tags=("count", "easy"),
        ended_by="answer",
        seconds=2.0,
    )
    return replace(trajectory, **changes)


def failed(number: int) -> Trajectory:
    message = "the container\nwas killed"
    return episode(
        number, reward=None, failure=Failure("sandbox", message, True), rejected="sandbox failure", ended_by="failure"
    )


def rejected(number: int) -> Trajectory:
    return episode(number, rejected="no model call", rejected_because="the agent asked nothing")


@contextmanager
def open_store(folder: Path, *episodes: Trajectory) -> Iterator[RunStore]:
    """A run that has begun, and whose process still has it open."""
    with RunStore.create(folder) as store:
        store.set_meta({"run_id": "my-run", "config": CONFIG})
        store.add_event("run_started", run_id="my-run", seed=1)
        for each in episodes:
            store.add_trajectory(each)
        yield store


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Show:
    """What the command prints."""

    def call(folder: Path, episode: str | None = None, limit: int = 20, **options: Any) -> str:
        filters = Filters(**{name: options.pop(name) for name in [*options] if name in Filters.__slots__})
        show(folder, episode, filters, limit, **options)
        return capsys.readouterr().out

    return call


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has ended: two good episodes, three failed ones and a rejected one, of two steps."""
    folder = tmp_path / "run"
    episodes = [episode(1), episode(2, step=2, tags=("write",)), *map(failed, (3, 4, 5)), rejected(6)]
    with open_store(folder, *episodes) as store:
        store.add_metrics("rl", 1, {"reward": 0.1, "pool/idle": 1.0})
        store.add_metrics("rl", 2, {"reward": 0.5, "loss": float("nan"), "pool/idle": 2.0}, [("0001cafe", 0, 2)])
        figures = {"success": 0.5, "success_low": 0.2, "success_high": 0.8, "reward": 0.5, "episodes": 4, "tasks": 2}
        store.add_metrics("eval", 0, figures)
        store.add_metrics("eval", 2, figures | {"success": 0.75})
        store.set_meta({"saved.final": "2"})
    summary = {"status": "completed", "seconds": {"total": 75.0}, "heldout": {"after_rl": {"step": 2}}}
    (folder / SUMMARY_NAME).write_text(json.dumps(summary))
    return folder


def test_a_run_says_how_it_went_and_what_was_lost(run: Path, shown: Show) -> None:
    text = shown(run)
    for sentence in (
        "my-run: completed\n  6 episodes, 84 sampled tokens, 1 min 15 s\n",
        "  rl     2 of 4  6         3 (50%)  4     done\n",
        "  before rl: 0.500 [0.200, 0.800], 4 episodes of 2 tasks\n",
        "  after rl: 0.750 [0.200, 0.800], mean reward 0.500, 4 episodes of 2 tasks\n",
        "  reward 0.5, loss nan\n  and 1 more, which --json shows\n",
        "  3 x sandbox failure  such as 0005cafe\n    the container was killed\n",
        "  1 x rejected: no model call  such as 0006cafe\n    the agent asked nothing\n",
        "  0001cafe  rl     1     count-1  passed    1       2      14      2.0      answer\n",
        "  0003cafe  rl     1     count-3  failure   -       2      14      2.0      failure\n"
        "    sandbox: the container was killed\n",
    ):
        assert sentence in text
    assert text.index("0006cafe") < text.index("0001cafe"), "the newest is first"
    assert "--resume" not in text


def test_of_many_evaluations_the_first_and_the_newest_are_shown_with_their_sets(tmp_path: Path, shown: Show) -> None:
    figures = {"success": 0.5, "reward": 0.5, "episodes": 4, "tasks": 2}
    with open_store(tmp_path) as store:
        for step in range(0, 100, 10):
            store.add_metrics("eval.easy", step, figures | {"success": 0.9})
            store.add_metrics("eval", step, figures | {"success": step / 100})
        store.add_metrics("eval.easy", 100, figures)  # the other sets of this step are under way
        text = shown(tmp_path)
    assert "  before rl: 0.000, mean reward 0.500, 4 episodes of 2 tasks\n  ... 4 evaluations ...\n  step 50:" in text
    assert "  step 90: 0.900, mean reward 0.500, 4 episodes of 2 tasks\n    easy: 0.900" in text
    assert text.count("easy") == 1
    assert "step 100" not in text


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ({"failed": True}, ["0006", "0005", "0004", "0003"]),
        ({"failed": True, "limit": 2}, ["0006", "0005"]),
        ({"step": 2}, ["0002"]),
        ({"tag": "count", "limit": 3}, ["0006", "0005", "0004"]),
        ({"tag": "easy", "failed": True, "step": 1}, ["0006", "0005", "0004", "0003"]),
        ({"tag": "write"}, ["0002"]),
        ({"stage": "rl", "step": 9}, []),
    ],
)
def test_episodes_are_chosen(run: Path, shown: Show, filters: dict[str, Any], ids: list[str]) -> None:
    rows = json.loads(shown(run, as_json=True, **filters))["shown"]
    assert [row["id"] for row in rows] == [f"{number}cafe" for number in ids]
    text = shown(run, **filters)
    assert "Held-out" not in text
    assert ("No episode of this run matches." in text) == (not ids)


def test_the_tag_may_be_any_of_many_episodes(tmp_path: Path, shown: Show) -> None:
    with open_store(tmp_path, *(episode(i, tags=("rare",) if i % 60 == 7 else ("common",)) for i in range(130))):
        rows = json.loads(shown(tmp_path, as_json=True, tag="rare"))["shown"]
    assert [row["task"] for row in rows] == ["count-127", "count-67", "count-7"]
    with RunStore.create(tmp_path) as store:
        store.add_trajectory(episode(500, made_with=(("scaffold", "chat"),)))
    assert len(json.loads(shown(tmp_path, as_json=True, tag="scaffold:chat"))["shown"]) == 1


def test_an_episode_is_shown_turn_by_turn(run: Path, shown: Show) -> None:
    text = shown(run, "0001")
    assert "Episode 0001cafe: passed, reward 1\n" in text
    assert "  task     count-1 (tags: count, easy)\n" in text
    assert "  policy   version 1; trained on, which made version 2\n" in text
    turns = text[text.index("── instruction") :]
    assert turns == (
        "── instruction\n  Count the files.\n\n"
        "── turn 1  4 tokens after 10, ended by stop, 0.25 s\n"
        "  thinks:\n    hm, [bold]count[/bold]\n"
        "  I count.\n"
        "  → shell\n    command:\n      ls\n      wc -l\n    lines: 3\n"
        "  ← shell  exit 0  0.50 s\n    3 files\n\n"
        "── turn 2  10 tokens after 20, ended by stop\n  There are 3.\n\n"
        "── result\n  The agent gave an answer without a tool call.\n"
        "  reward 1, passed, in 0.10 s\n    format: 0.25\n    tests: 0.75\n    all tests passed\n"
    )


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({"ended_by": "finish"}, ["The agent finished."]),
        ({"ended_by": "budget"}, ["A limit was reached: all 2 model calls (rollout.max_calls)."]),
        ({"ended_by": "timeout"}, ["The agent's time was up"]),
        ({"ended_by": "own word"}, ["The agent says: own word."]),
        (
            {"reward": None, "failure": Failure("engine", "it is gone"), "ended_by": "failure"},
            ["It failed, and is no fault of the policy (engine failure).", "it is gone", "It has no reward."],
        ),
        (
            {"rejected": "too old", "rejected_because": "8 versions"},
            ["It is kept out of training: too old: 8 versions", "reward 1"],
        ),
    ],
)
def test_an_episode_says_why_it_ended(
    tmp_path: Path, shown: Show, changes: dict[str, Any], sentences: list[str]
) -> None:
    with open_store(tmp_path, episode(1, **changes)):
        text = shown(tmp_path, "0001cafe")
    result = text[text.index("── result") :]
    for sentence in sentences:
        assert sentence in result


def test_errors_contexts_and_answers_that_came_too_late_are_shown(tmp_path: Path, shown: Show) -> None:
    first = episode(1)
    bad = ToolCall("c2", "shell", "{oops")
    messages = (*first.sequences[0].messages[:2], Message("assistant", "", (bad,)))
    error = ChunkError("illegal_call", "The tool call is not valid JSON.")
    chunk = Chunk(2, 1, 5, 8, (-1.0,) * 3, (2,) * 3, "length", error=error, turn=2)
    late = Observation(2, "finish", {}, "done", 1, 0.0, reward=0.5)
    t = replace(
        first,
        sequences=(*first.sequences, Sequence((1,) * 8, messages)),
        chunks=(*first.chunks, chunk),
        observations=(*first.observations, late),
        reward=Score(0.5, False, by_chunk=(0.0, 0.0, 0.5)),
    )
    with open_store(tmp_path, t):
        text = shown(tmp_path, t.id)
    assert "══ context 2 of 2: 8 tokens; its first 2 messages are those of context 1\n" in text
    assert text.count("Count the files.") == 1
    assert "── turn 3  3 tokens after 5, ended by length, policy version 2, reward 0.5\n  → shell  {oops\n" in text
    assert "  ✗ illegal call: The tool call is not valid JSON.\n" in text
    assert "  ← finish  exit 1  0.00 s  reward 0.5  (the model did not see it)\n    done\n" in text


HOSTILE = "\x1b[2J\x1b]0;title\x07 [red]no markup[/red] \x9b31m \u202etxt.exe \ud800 \r\n宽字符 :smile:\x00"


def hostile() -> Trajectory:
    first = episode(1)
    seen = first.sequences[0].messages
    messages = (*seen[:2], Message("assistant", HOSTILE, (ToolCall("c", HOSTILE, json.dumps({HOSTILE: HOSTILE})),)))
    messages = (*messages, Message("tool", HOSTILE), seen[-1])
    return replace(
        first,
        task_id="宽字符",
        sequences=(replace(first.sequences[0], messages=messages),),
        tags=(HOSTILE,),
        reward=Score(0.0, False, HOSTILE),
        ended_by=HOSTILE,
        rejected=HOSTILE,
    )


@pytest.mark.parametrize("beginning", [None, "0001"])
def test_hostile_text_reaches_neither_a_terminal_nor_a_pipe(tmp_path: Path, shown: Show, beginning: str | None) -> None:
    with open_store(tmp_path, hostile()):
        text = shown(tmp_path, beginning)
        terminal = at_a_terminal(tmp_path, *([beginning] if beginning else []))
        assert json.loads(shown(tmp_path, beginning, as_json=True))
    assert not {c for c in text if ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000} - {"\n"}
    assert "\u202e" not in text
    assert "␛[2J␛]0;title␇ [red]no markup[/red] [U+009B]31m [U+202E]txt.exe" in text
    assert "宽字符 :smile:␀" in text
    for sequence in ("\x1b[2J", "\x1b]0", "\x07", "\x9b", "\u202e"):
        assert sequence not in terminal
    assert "[red]no markup[/red]" in terminal.replace("\r\n", "")


def at_a_terminal(folder: Path, *arguments: str) -> str:
    """What a terminal gets from `ale show`, whose pager is `cat`."""
    ours, its = os.openpty()
    code = "import sys; from ale.cli.main import main; sys.argv = ['ale', 'show', *sys.argv[1:]]; main()"
    environment = {**os.environ, "PAGER": "cat", "TERM": "xterm-256color", "COLUMNS": "400", "NO_COLOR": ""}
    with subprocess.Popen([sys.executable, "-c", code, folder, *arguments], stdout=its, env=environment) as process:
        os.close(its)
        output = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            output += data
        os.close(ours)
    assert process.returncode == 0
    return output.decode()


def test_a_terminal_gets_colours_and_a_pipe_none(run: Path, shown: Show) -> None:
    assert "\x1b[1;32mcompleted" in at_a_terminal(run)
    assert "\x1b" not in shown(run)


def test_long_texts_lose_their_middle_unless_all_is_asked_for(tmp_path: Path, shown: Show) -> None:
    first = episode(1)
    messages = list(first.sequences[0].messages)
    messages[3] = replace(messages[3], content="a" * 5000 + "MIDDLE" + "z" * 5000)
    long = replace(first, sequences=(replace(first.sequences[0], messages=tuple(messages)),))
    with open_store(tmp_path, long):
        short, full = shown(tmp_path, "0001"), shown(tmp_path, "0001", full=True)
    assert "[... 4,506 characters left out; --full shows them ...]" in short
    assert "MIDDLE" not in short
    assert "a" * 5000 + "MIDDLE" + "z" * 5000 in full


def test_a_run_that_goes_on_is_running_and_one_that_was_killed_is_not(tmp_path: Path, shown: Show) -> None:
    running, killed = tmp_path / "running", tmp_path / "killed"
    with open_store(running, episode(1)):
        assert (running / f"{DB_NAME}-wal").stat().st_size, "what is stored is not yet in the file itself"
        shutil.copytree(running, killed)  # as kill -9 leaves it
        text = shown(running)
        assert "my-run: running\n" in text
        assert "something was stored 0." in text
        assert "--resume" not in text
    text = shown(killed)
    assert "my-run: killed\n" in text
    assert "Nobody writes to it, and it left no summary: it was killed." in text
    assert f"`ale run --resume {killed}` goes on with it." in text
    assert "0001cafe" in text


def test_a_summary_of_an_earlier_attempt_is_not_used(run: Path, shown: Show) -> None:
    past = time.time() - 60
    os.utime(run / SUMMARY_NAME, (past, past))
    assert "my-run: killed\n" in shown(run)


def test_a_failed_run_says_why(run: Path, shown: Show) -> None:
    (run / SUMMARY_NAME).write_text(json.dumps({"status": "failed", "error": "The engine\nis gone."}))
    assert "my-run: failed\n  The engine\n  is gone.\n" in shown(run)


def test_a_run_without_episodes_is_a_run(tmp_path: Path, shown: Show) -> None:
    with open_store(tmp_path):
        assert "No episode has finished yet." in shown(tmp_path)
        assert json.loads(shown(tmp_path, as_json=True))["stages"] == []


@pytest.mark.parametrize(
    ("beginning", "sentence"),
    [
        ("9", "No episode of .* has an id that begins with '9'"),
        ("00", r"several episodes begin with '00': 0001cafe \(count-1\), 0002cafe"),
        ("count-3", "'count-3' is a task. The newest of its episodes: 0003cafe."),
        ("'; DROP TABLE trajectories", "No episode of"),
    ],
)
def test_an_episode_that_is_not_found_is_a_sentence(run: Path, shown: Show, beginning: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        shown(run, beginning)


def test_what_is_no_run_is_a_sentence(run: Path, tmp_path: Path, shown: Show) -> None:
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    empty.mkdir()
    broken.mkdir()
    (broken / DB_NAME).write_bytes(b"no database" * 100)
    (tmp_path / "file").touch()
    for path, sentence in (
        (empty, "is not a run folder: it holds no run.db"),
        (broken, "cannot be read as a run database"),
        (tmp_path / "file", "is a file, not a run folder"),
        (tmp_path / "nowhere", "is no folder"),
        (tmp_path, f"is not a run folder, but holds some. The newest: .*{run.name}"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            shown(path)
    with pytest.raises(ConfigError, match=r"--stage sft: no episode is of it. Stages: rl\."):
        shown(run, stage="sft")
    with pytest.raises(ConfigError, match="leave out --failed"):
        shown(run, "0001", failed=True)


def test_json_has_the_whole_episode_and_no_nan(tmp_path: Path, shown: Show) -> None:
    with open_store(tmp_path, episode(1, reward=Score(1.0, True, parts={"odd": float("nan")}))) as store:
        store.add_metrics("rl", 1, {"loss": float("inf")})
        whole = json.loads(shown(tmp_path, "0001", as_json=True))
        facts = json.loads(shown(tmp_path, as_json=True))
    assert whole["sequences"][0]["token_ids"] == list(range(30))
    assert whole["reward"]["parts"] == {"odd": None}
    assert facts["status"] == "running"
    assert facts["stages"][0]["metrics"] == {"loss": None}


def test_columns_are_as_wide_as_their_letters() -> None:
    table = Table(("A", "B"))
    table.add(("宽字", ""), ("x", ""))
    table.add(("four", ""), ("y", ""), note=("note", ""))
    assert [each.plain for each in table.lines(1)] == [" A     B", " 宽字  x", " four  y", "   note"]
    assert printable("a\tb\nc") == "a\tb\nc"
