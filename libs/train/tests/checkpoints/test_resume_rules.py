"""Which runs can go on, and with what: by what their folders hold, without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ale.errors import ConfigError
from ale.store.run_store import RunStore
from ale_train.checkpoints.resume import describe_new_rates, half_to_resume, run_to_resume
from ale_train.config.rl import RLConfig

RUN: dict[str, Any] = {
    "tasks": {"use": "bash"},
    "rl": {"steps": 4, "prompts_per_step": 2},
    "eval": {"episodes": 4},
    "trainer": {"use": "torch", "lr": 0.001},
}


def make(folder: Path, *, status: str = "completed", step: int = 4, only: str = "all", **changes: Any) -> Path:
    """A run folder after so many steps, whose newest checkpoint is of the last of them."""
    with RunStore.create(folder) as store:
        store.set_meta({"run_id": "r", "config": yaml.safe_dump(RUN | changes)})
        store.add_event("run_started", only=only, source=None)
        for number in range(1, step + 1):
            store.add_metrics("rl", number, {"success": 0.5})
        store.add_event("run_finished", status=status)
    if step and only == "all":
        (folder / "checkpoints" / f"step_{step}").mkdir(parents=True)
        (folder / "checkpoints" / "LATEST").write_text(f"step_{step}\n")
    return folder


def changed(**changes: Any) -> str:
    """The text of the run file with other settings: `rl__steps=9`."""
    data = yaml.safe_load(yaml.safe_dump(RUN))
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            data.setdefault(section, {})[name] = value
        else:
            data[section] = value
    return yaml.safe_dump(data)


HARMLESS = {
    "eval__episodes": 9, "eval__every": 2, "rl__checkpoint_every": 1, "rl__checkpoint_keep": 0, "rl__patience_s": 9.0,
    "rl__stall_s": 9.0, "rl__scoring_concurrency": 3, "rollout__concurrency": 3, "rollout__timeout_s": 9.0,
    "observers": [{"use": "wandb"}], "trainer__ranks": 2, "engine__max_batch": 2, "pool__warm": 2, "rl__probe_limit": 1,
    "name": "other", "trainer__threads": 2, "rl__min_entropy": 0, "cluster": {"use": "ray"}, "rl__multiplex": 0,
}  # fmt: skip


@pytest.mark.parametrize("key", HARMLESS)
def test_what_does_not_decide_what_is_learned_may_change(key: str, tmp_path: Path) -> None:
    assert run_to_resume(make(tmp_path), changed(rl__steps=9, **{key: HARMLESS[key]}), 9) == "r"


LEARNED = {
    "seed": 2, "rl__prompts_per_step": 3, "rl__lr": 0.1, "rl__epochs": 2, "rl__async_ratio": 1, "trainer__lr": 0.1,
    "trainer__lora": {"rank": 2}, "trainer__use": "megatron", "algorithm__use": "pg", "rollout__temperature": 0.5,
    "rollout__max_tokens": 9, "model__path": "other", "reward__use": "python",
    "tasks__use": "data", "scaffold__use": "chat", "sft__steps": 9, "rl__updates_per_step": 2,
}  # fmt: skip


@pytest.mark.parametrize("key", LEARNED)
def test_what_decides_it_may_not_and_a_fork_is_proposed(key: str, tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    with pytest.raises(ConfigError) as refused:
        run_to_resume(run, changed(rl__steps=9, **{key: LEARNED[key]}), 9)
    name = "sft" if key.startswith("sft") else key.replace("__", ".")  # a stage that there was not
    assert f"A resumed run cannot change {name}: " in str(refused.value)
    assert f"ale run {run}/config.yaml --fork {run} KEY=VALUE" in str(refused.value)


def test_evaluations_are_sampled_alike(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"cannot change eval.temperature: its evaluations would not compare") as said:
        run_to_resume(run, changed(rl__steps=9, eval__temperature=0.5), 9)
    assert f"`ale eval {run} eval.temperature=VALUE` measures" in str(said.value)


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (4, r"is complete: it has made its 4 steps. Give it more \(rl.steps=8\)"),
        (3, r"rl.steps is 3, but the run in .* has made 4 steps: give it at least as many"),
    ],
)
def test_a_finished_run_needs_more_steps(steps: int, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run_to_resume(make(tmp_path), changed(rl__steps=steps), steps)


def test_an_interrupted_run_may_end_earlier_but_not_before_its_checkpoint(tmp_path: Path) -> None:
    run = make(tmp_path, status="interrupted", step=2)
    with RunStore.create(run) as store:
        store.add_metrics("rl", 3, {"success": 0.5})  # after the checkpoint: it is undone
    assert run_to_resume(run, changed(rl__steps=2), 2) == "r"
    with pytest.raises(ConfigError, match="has made 2 steps"):
        run_to_resume(run, changed(rl__steps=1), 1)


def test_a_run_that_was_killed_while_it_went_on_is_not_complete(tmp_path: Path) -> None:
    run = make(tmp_path)
    with RunStore.create(run) as store:
        store.add_event("run_resumed", only="all")
    assert run_to_resume(run, changed(), 4) == "r"


def test_a_run_without_reinforcement_learning_can_get_it(tmp_path: Path) -> None:
    run = make(tmp_path, step=0, rl=None)
    with pytest.raises(ConfigError, match="is complete; there is nothing to go on with"):
        run_to_resume(run, changed(rl=None), None)
    assert run_to_resume(run, changed(), 4) == "r"
    with pytest.raises(ConfigError, match="cannot change rl"):
        run_to_resume(make(tmp_path / "trained"), changed(rl=None), None)


def test_halves_of_the_loop_go_on_as_what_they_are(tmp_path: Path) -> None:
    dump, trained = make(tmp_path / "dump", only="rollout"), make(tmp_path / "trained", only="train")
    assert half_to_resume(dump) == ("rollout", None)
    (dump / "model" / "initial").mkdir(parents=True)
    assert half_to_resume(dump) == ("rollout", dump), "it has its policy itself"
    assert run_to_resume(dump, changed(rl__steps=9), 9) == "r"
    with pytest.raises(ConfigError, match="trains on a dump"):
        half_to_resume(trained)
    assert half_to_resume(make(tmp_path / "whole")) == ("all", None)


def test_a_sentence_says_that_learning_rates_follow_from_the_number_of_steps(tmp_path: Path) -> None:
    constant, falling = make(tmp_path / "constant"), make(tmp_path / "falling", rl={"steps": 4, "lr": 0.1})
    assert describe_new_rates(constant, RLConfig(steps=9)) == ""
    assert describe_new_rates(falling, RLConfig(steps=4, lr=0.1)) == ""
    assert "rates of a run of 4 steps, those to come have the rates of one of 9." in describe_new_rates(
        falling, RLConfig(steps=9, lr=0.1)
    )


def test_a_section_that_the_file_leaves_out_is_that_of_its_defaults(tmp_path: Path) -> None:
    run = make(tmp_path, trainer={"use": "torch"})
    left_out = yaml.safe_dump({key: value for key, value in RUN.items() if key != "trainer"})
    assert run_to_resume(run, left_out.replace("steps: 4", "steps: 9"), 9) == "r"
