"""Runs whose reward, user and tools are functions in files, with a data set and without a sandbox."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from ale_command import REPOSITORY, ale, summary_of

from ale.store.run_store import RunStore
from ale_train.python_api import run
from ale_train.rl.spare_rollouts import SPARE_SEED

ROWS = [{"prompt": f"{n} + 1 =", "answer": str(n + 1), "level": "easy"} for n in range(6)]
FUNCTIONS = """
def score(completion, answer):
    return float(completion == answer)

def misspelt(completion, anwser):
    return 1.0

def crashes(completion):
    return {}[completion]

def opponent(completion, answer):
    if completion == answer:
        return None, 1.0
    return "No.", -0.5

async def slow(completion):
    import asyncio, pathlib
    rewards = pathlib.Path(__file__).with_name("rewards")
    with rewards.open("a") as file:
        print("begins", file=file, flush=True)
        while rewards.read_text().count("begins") < int(rewards.with_name("at once").read_text()):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        print("ends", file=file, flush=True)
    return 1.0

async def hangs_once(completion):
    import asyncio, pathlib
    try:
        pathlib.Path(__file__).with_name("hung").touch(exist_ok=False)
    except FileExistsError:
        return "Go on."
    await asyncio.sleep(600)

async def look(command: str, sandbox) -> str:
    return (await sandbox.exec(command)).output
"""
RUN = """
name: own
tasks: {{use: jsonl, files: {{heldout: {folder}/rows.jsonl}}}}
scaffold: chat
sandbox: none
reward: {{use: python, path: {folder}/mine.py, function: score}}
engine: {{use: scripted, answers: ["1", "2", "3"]}}
trainer: null
eval: {{episodes: 6}}
rollout: {{max_resamples: 0}}
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run over six questions, whose policy says 1, 2, 3, 3, ..."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    path = tmp_path / "run.yaml"
    path.write_text(RUN.format(folder=tmp_path))
    return path


def test_a_file_of_questions_and_a_function_are_a_run(run_file: Path, tmp_path: Path) -> None:
    summary_of(ale("run", run_file, "--out", tmp_path / "out"))
    with RunStore.open(tmp_path / "out") as store:
        played = list(store.trajectories())
    assert len(played) == 6
    assert sorted(t.reward.value for t in played if t.reward) == [0.0] * 5 + [1.0]


def test_a_user_that_is_a_function_gives_each_turn_its_reward(run_file: Path, tmp_path: Path) -> None:
    user = f"scaffold={{use: chat, user: '{tmp_path}/mine.py:opponent', max_turns: 3}}"
    summary_of(ale("run", run_file, user, "reward=steps", "--out", tmp_path / "out"))
    with RunStore.open(tmp_path / "out") as store:
        by_answer = {t.sequences[0].messages[0].content: t for t in store.trajectories()}
    found = by_answer["1 + 1 ="]
    assert found.reward is not None
    assert (found.reward.by_chunk, found.reward.value, found.ended_by) == ((-0.5, 1.0), 0.5, "finish")
    never = by_answer["5 + 1 ="]
    assert never.reward is not None
    assert (never.reward.by_chunk, never.ended_by) == ((-0.5,) * 3, "max_turns")


@pytest.mark.parametrize("most", [1, 3])
def test_rewards_have_their_own_limit_and_hold_no_place_of_a_rollout(run_file: Path, tmp_path: Path, most: int) -> None:
    loop = ("eval=null", "algorithm={use: pg, group_size: 2}", "rl={steps: 1, prompts_per_step: 3}")
    limits = ("rollout.concurrency=1", f"rl.scoring_concurrency={most}")
    (tmp_path / "at once").write_text(str(most))  # the first rewards wait for so many
    rows = f"tasks.files={{train: {tmp_path}/rows.jsonl}}"
    done = ale(
        "run", run_file, "--only", "rollout", *loop, *limits, rows, "reward.function=slow", "--out", tmp_path / "r"
    )
    summary_of(done)
    at_once = [0]
    for line in (tmp_path / "rewards").read_text().splitlines():
        at_once.append(at_once[-1] + (1 if line == "begins" else -1))
    assert len(at_once) == 13
    assert max(at_once) == most


def test_a_rollout_whose_tools_hang_is_outrun_by_its_spare(run_file: Path, tmp_path: Path) -> None:
    loop = ("eval=null", "algorithm={use: pg, group_size: 4}", "rl={steps: 1, prompts_per_step: 2}", "rollout.spare=1")
    rows = f"tasks.files={{train: {tmp_path}/rows.jsonl}}"
    user = f"scaffold={{use: chat, user: '{tmp_path}/mine.py:hangs_once', max_turns: 2}}"
    # Nobody waits for it: it hangs for longer than a test may take.
    summary_of(ale("run", run_file, "--only", "rollout", *loop, rows, user, "--out", tmp_path / "r"))
    with RunStore.open(tmp_path / "r") as store:
        made = list(store.trajectories())
        metrics = store.metrics("rl")
    (lost,) = [t for t in made if t.rejected]
    assert (lost.rejected, lost.reward, len(lost.chunks)) == ("spare", None, 1), "what it had sampled is stored"
    assert sorted(Counter(t.group for t in made if t.rejected is None).values()) == [4, 4]
    spare = [t for t in made if t.group == lost.group and t.seed == lost.seed + SPARE_SEED]
    assert len(spare) == 1
    assert metrics["rejected/spare"] == [(1, 1 / 9)]
    assert lost.failure is not None
    assert lost.failure.kind == "spare"
    assert metrics["rollouts"] == [(1, 8.0)]


@pytest.mark.parametrize(
    ("setting", "code", "sentence"),
    [
        ("reward.function=misspelt", 2, "takes 'anwser', which nothing provides. Did you mean 'answer'?"),
        ("reward.function=scor", 2, "has no function 'scor'. Did you mean 'score'?"),
        ("reward.path=gone.py", 2, "there is no file gone.py"),
        ("reward.function=crashes", 1, "crashes of "),
        (
            "scaffold={{use: chat, tools: ['{folder}/mine.py:look']}}",
            2,
            "sandbox: the run has none ('sandbox: none'), and the scaffold plugin",
        ),
        ("scaffold={{use: chat, tools: ['{folder}/mine.py:lok']}}", 2, "has no function 'lok'. Did you mean 'look'?"),
    ],
)
def test_a_wrong_function_is_a_sentence_and_no_traceback(
    run_file: Path, tmp_path: Path, setting: str, code: int, sentence: str
) -> None:
    done = ale("run", run_file, setting.format(folder=tmp_path), "--out", tmp_path / "out")
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_example_learns_sums_from_a_file_and_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    result = run("examples/math.yaml", "sft.steps=400", "rl.steps=12", out=tmp_path / "out", quiet=True)
    success = {name: one["success"] for name, one in result.evaluations.items()}
    assert 0.2 < success["after_sft"] < 0.45
    assert success["after_rl"] > success["after_sft"] + 0.15
