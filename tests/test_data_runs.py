"""A data set and a reward of one's own train a policy, through the command line; mistakes are found before it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ale_command import ale, summary_of

from ale.store.run_store import RunStore

RUN = """
name: sums
model:
  scratch: {hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, vocab_size: 300, max_length: 128}
tasks: {use: jsonl, path: sums.jsonl, columns: {prompt: problem, answer: result, completion: result, tags: level}}
scaffold: chat
reward: {use: python, path: my_reward.py, function: score}
engine: {use: torch, threads: 1, max_batch: 8}
trainer: {use: torch, threads: 1}
algorithm: {use: pg, variant: grpo, group_size: 2}
rollout: {concurrency: 8, max_calls: 1, max_tokens: 8, max_context: 128}
sft: {demonstrations: {count: 12}, steps: 2, batch_size: 4}
rl: {steps: 1, prompts_per_step: 2}
eval: {episodes: 4, every: 0}
"""
REWARD = "def score(completion, answer, level):\n    return float(level == 'easy' and completion.strip() == answer)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with data, a reward and a run file."""
    rows = [{"problem": f"{i} + {i} =", "result": str(2 * i), "level": "easy"} for i in range(20)]
    (tmp_path / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "my_reward.py").write_text(REWARD)
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path


def test_a_data_set_is_demonstrated_trained_on_and_held_out(folder: Path) -> None:
    done = ale("run", "run.yaml", "--out", folder / "out", cwd=folder)
    assert {"before_sft", "after_sft", "after_rl"} <= set(summary_of(done)["heldout"])
    with RunStore.open(folder / "out") as store:
        shown = [*store.trajectories("stage = 'demonstrations'")]
        held_out = {t.task_id for t in store.trajectories("split = 'heldout'")}
    assert len(shown) == 12
    assert all(t.passed and t.tags == ("easy",) for t in shown), "the demonstrator gives the right answer"
    assert len(held_out) == 2
    assert not held_out & {t.task_id for t in shown}


def test_rows_of_messages_are_fine_tuned_on(folder: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{i} ="}, {"role": "assistant", "content": str(i)}]}
        for i in range(9)
    ]
    (folder / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = ["sft={demonstrations: {data: [chats.jsonl]}, steps: 2, batch_size: 4}", "rl=null"]
    done = ale("run", "run.yaml", *data, "--out", folder / "out", cwd=folder)
    assert "9 of 9 demonstrations are trained on (0 pass their tests, 9 have no score)" in done.stdout + done.stderr
    with RunStore.open(folder / "out") as store:
        assert len(store.metrics("sft")["loss"]) == 2
    rows.append({"messages": [{"role": "user"}]})
    (folder / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    wrong = ale("run", "run.yaml", *data, "--out", folder / "wrong", cwd=folder)
    assert wrong.returncode == 2
    assert "chats.jsonl, line 10: the column 'messages': message 1: it has no 'content'." in wrong.stderr


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("tasks.columns.prompt=problm", "no column 'problm', .* has the columns problem, result, level. Did you mean"),
        ("tasks.path=sum.jsonl", "There is no file or folder sum.jsonl; a relative path starts where the command runs"),
        ("tasks.columns={prompt: problem}", "sft.demonstrations needs a tasks with 'demonstrations'"),
        ("tasks.colums={prompt: problem}", r"tasks\.colums: there is no such key\. Did you mean 'columns'\?"),
    ],
)
def test_mistakes_are_found_before_anything_starts(folder: Path, override: str, sentence: str) -> None:
    done = ale("config", "validate", "run.yaml", override, cwd=folder)
    assert done.returncode == 2
    assert re.search(sentence, done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1
