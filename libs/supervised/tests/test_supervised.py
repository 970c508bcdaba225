"""The supervised stages without a model: what a run file may say, which demonstrations a stage gets, how rates and
decay go."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.config.preflight import preflight
from ale.config.run import RunConfig
from ale.errors import ConfigError
from ale.registry.validation import validate
from ale.session.tokenizer import byte_tokenizer
from ale.specs.algorithm import Algorithm, Loss
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.trainer import LossInput, LossOutput, TrainBatch
from ale.trajectory import Chunk, ChunkError, Score, Trajectory
from ale_packing import Credit, pack
from ale_supervised.config import CPTConfig, CPTStage, Curation, SFTConfig, SFTSteps
from ale_supervised.curation import curate
from ale_supervised.pretraining import pretrain, run_in_thread
from ale_supervised.warm_start import fine_tune, learning_rate
from ale_testing.sample_batches import trajectory

STAGE = {"data": ["x.txt"], "steps": 4, "batch_tokens": 64, "sequence_tokens": 32}


def loaded(**sections: Any) -> Any:
    """A run with these sections."""
    return validate(RunConfig, {"tasks": "bash", "model": {"path": "."}, **sections})


# -- what a run file may say -------------------------------------------------------------------------------------------


def test_a_section_without_stages_is_one_stage_as_it_always_was() -> None:
    (stage,) = SFTConfig(steps=7, lr=0.5).plan
    assert (stage.steps, stage.lr, stage.batch_size, stage.keep) == (7, 0.5, 32, Curation())
    assert SFTConfig().runs_demonstrations


def test_stages_have_their_own_steps_data_and_settings_of_the_algorithm() -> None:
    run = loaded(
        sft={
            "algorithm": {"use": "sft", "mask_errors": False},
            "stages": [{"steps": 3}, {"steps": 2, "lr": 1e-4, "algorithm": {"task_rules": ["pruned"]}}],
        }
    )
    assert [(path, choice.use, choice.settings) for path, choice in run.sft.algorithms()] == [
        ("sft.algorithm", "sft", {"mask_errors": False}),
        ("sft.stages.1.algorithm", "sft", {"mask_errors": False, "task_rules": ["pruned"]}),
    ]
    assert [stage.steps for stage in run.sft.plan] == [3, 2]


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"sft": {"steps": 5, "lr": 0.1, "stages": [{}]}}, "sft: with 'stages' each stage has its own steps, lr"),
        ({"sft": {"stages": [{"algorithm": {"task_rule": ["x"]}}]}}, r"sft.stages.0.algorithm.task_rule: .*task_rules"),
        ({"sft": {"stages": [{"algorithm": {"task_rules": ["x"]}}]}}, r"sft.stages.0.algorithm.*there is no rule 'x'"),
        ({"sft": {"stages": [{"algorithm": "sft"}]}}, "sft.stages.0.algorithm: must be a mapping"),
        (
            {"sft": {"stages": [{"keep": {"passed": True}}]}},
            "sft.stages.0.keep.passed: there is no such key.*passed_only",
        ),
        ({"sft": {"stages": [{"data": ["a"]}], "demonstrations": {"count": 5}}}, "nothing reads demonstrations.count"),
        ({"cpt": {"stages": []}}, "cpt.stages: .*at least 1"),
        ({"cpt": {"stages": [{**STAGE, "data": []}]}}, "cpt.stages.0.data: .*at least 1"),
        ({"cpt": {"stages": [{**STAGE, "batch_tokens": 50}]}}, r"batch_tokens \(50\) must be a multiple of"),
        ({"cpt": {"stages": [{**STAGE, "weight_decay": [0.1, -0.1]}]}}, "weight_decay must not be below 0"),
        ({"cpt": {"stages": [{**STAGE, "weight_decay": [0.1]}]}}, "cpt.stages.0.weight_decay"),
        ({"cpt": {"algorithm": "stf", "stages": [STAGE]}}, "cpt.algorithm: there is no algorithm plugin 'stf'"),
    ],
)
def test_a_mistake_in_a_stage_is_a_sentence_with_its_path(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        loaded(**sections)


def test_demonstrations_are_run_only_where_a_stage_reads_them() -> None:
    assert not SFTConfig.model_validate({"stages": [{"data": ["run"]}]}).runs_demonstrations
    assert SFTConfig.model_validate({"stages": [{"data": ["run"]}, {}]}).runs_demonstrations
    assert not SFTConfig.model_validate({"demonstrations": {"data": ["run"]}}).runs_demonstrations


def test_text_that_is_not_there_and_sequences_beyond_the_model_are_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "x.txt").write_text("x")
    stage = {**STAGE, "data": [tmp_path / "x.txt"]}
    preflight(loaded(cpt={"stages": [stage]}))
    small, scratch = tmp_path / "small", {"scratch": {"max_length": 16}}
    small.mkdir()
    (small / "config.json").write_text(json.dumps({"max_position_embeddings": 31}))
    for changes, sentence in (
        (
            {"cpt": {"stages": [{**STAGE, "data": [tmp_path / "y.txt"]}]}},
            "cpt.stages.0.data: there is no file or folder",
        ),
        ({"cpt": {"stages": [stage], "heldout": [tmp_path / "y.txt"]}}, "cpt.heldout: there is no file or folder"),
        ({"cpt": {"stages": [stage]}, "model": {"path": small}}, "32 tokens are more than the model's context of 31"),
        (
            {"cpt": {"stages": [stage]}, "model": scratch},
            "needs an 'sft' section; for cpt without it give",
        ),
        ({"cpt": {"stages": [stage]}, "model": scratch, "sft": {}}, "model's context of 16"),
        ({"cpt": {"stages": [stage]}, "trainer": None}, "trainer: 'cpt', 'sft' and 'rl' need a trainer"),
        ({"cpt": {"stages": [stage]}, "model": {}}, "model: 'cpt', 'sft' and 'rl' need a policy to train"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            preflight(loaded(**changes))


# -- rates -------------------------------------------------------------------------------------------------------------


def test_weight_decay_goes_along_a_line_from_the_first_step_to_the_last() -> None:
    annealed = CPTStage.model_validate({**STAGE, "steps": 10, "weight_decay": [0.1, 0.01]})
    found = [annealed.weight_decay_at(i) for i in range(10)]
    assert found == pytest.approx([0.1 - 0.01 * i for i in range(10)])
    assert CPTStage.model_validate({**STAGE, "weight_decay": 0.2}).weight_decay_at(3) == 0.2
    assert CPTStage.model_validate(STAGE).weight_decay_at(0) is None
    assert CPTStage.model_validate({**STAGE, "steps": 1, "weight_decay": [0.1, 0.01]}).weight_decay_at(0) == 0.1
    assert CPTConfig.model_validate({"stages": [STAGE]}).stages[0].lr == 3e-5


def test_the_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    config = SFTSteps(steps=30, lr=1.0, warmup_steps=10)
    rates = [learning_rate(config, step) for step in range(31)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == 1.0
    assert rates[30] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)


# -- which demonstrations ----------------------------------------------------------------------------------------------


def made(name: str, *, errors: int = 0, turns: int = 2, longest: int = 2, **changes: Any) -> Trajectory:
    """A demonstration of the task `count` that passed, whose first turns failed."""
    error = ChunkError("execution_failed", "no")
    chunks = tuple(
        Chunk(
            i, 0, i, i + (longest if i == 0 else 1), (), (), "stop", sampled=False, error=error if i < errors else None
        )
        for i in range(turns)
    )
    given = {
        "task_id": "count-1",
        "tags": ("count",),
        "chunks": chunks,
        "ended_by": "finish",
        "reward": Score(1.0, True),
    }
    return Trajectory(
        name,
        split="train",
        stage="demonstrations",
        step=0,
        group=name,
        seed=0,
        policy_version=0,
        sequences=(),
        **{**given, **changes},
    )


def kept(trajectories: list[Trajectory], **keep: Any) -> tuple[list[str], dict[str, int]]:
    out, left_out = curate(trajectories, Curation(**keep))
    return [t.id for t in out], dict(left_out)


def test_each_key_leaves_out_what_it_says() -> None:
    cut = Chunk(1, 0, 1, 2, (), (), "length", sampled=False)
    all_of_them = [
        made("good"),
        made("failed", reward=Score(0.0, False)),
        made("unscored", reward=None),
        made("graded", reward=Score(0.4, False)),
        made("loop", errors=3, turns=6),
        made("wordy", longest=50),
        made("short", turns=1),
        made("budget", ended_by="budget"),
        made("slow", ended_by="agent_timeout"),
        made("turns", ended_by="max_turns"),
        made("cut", chunks=(cut,) * 2),
        made("other", tags=("find", "hard")),
    ]
    names = [t.id for t in all_of_them]
    assert kept(all_of_them) == (names, {})
    for keep, without in (
        ({"passed_only": True}, {"failed", "unscored", "graded"}),
        ({"min_reward": 0.4}, {"failed", "unscored"}),
        ({"max_error_turns": 2}, {"loop"}),
        ({"max_error_turns": 3}, set()),
        ({"max_turn_tokens": 49}, {"wordy"}),
        ({"min_turns": 2}, {"short"}),
        ({"complete_only": True}, {"budget", "slow", "turns", "cut"}),
        ({"tags": ["count"]}, {"other"}),
        ({"tags": ["!hard"]}, {"other"}),
    ):
        assert kept(all_of_them, **keep) == (
            [name for name in names if name not in without],
            {next(iter(keep)): len(without)} if without else {},
        ), keep


def test_side_calls_are_no_turns_of_a_demonstration() -> None:
    side = Chunk(1, 0, 2, 60, (), (), "length", sampled=False, side=True, error=ChunkError("truncated", "x"))
    t = made("t", turns=1)
    t = made("t", chunks=(*t.chunks, side))
    assert kept([t], max_turn_tokens=9, max_error_turns=0, complete_only=True) == (["t"], {})
    assert kept([t], min_turns=2) == ([], {"min_turns": 1})


def test_of_each_task_the_best_are_kept_in_their_order() -> None:
    all_of_them = [
        made("a-failed", task_id="a", reward=Score(0.0, False)),
        made("a-long", task_id="a", turns=5),
        made("a-loop", task_id="a", errors=1),
        made("b-failed", task_id="b", reward=Score(0.0, False)),
        made("a-short", task_id="a"),
        made("a-short-too", task_id="a"),
        made("b-unscored", task_id="b", reward=None),
    ]
    assert kept(all_of_them, per_task=1) == (["b-failed", "a-short"], {"per_task": 5})
    assert kept(all_of_them, per_task=3) == (
        ["a-long", "b-failed", "a-short", "a-short-too", "b-unscored"],
        {"per_task": 2},
    )


@settings(max_examples=60, deadline=None)
@given(
    rewards=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1), st.integers(0, 3)), max_size=12),
    count=st.integers(1, 4),
)
def test_what_is_left_out_is_never_better_than_what_is_kept(rewards: list[tuple[str, float, int]], count: int) -> None:
    found = [
        made(str(i), task_id=task, reward=Score(value, value > 0.5), errors=errors, turns=4)
        for i, (task, value, errors) in enumerate(rewards)
    ]
    out, left_out = curate(found, Curation(per_task=count))
    assert len(out) + left_out["per_task"] == len(found)
    assert [t.id for t in out] == [t.id for t in found if t in out], "in their order"
    for task in "abc":
        inside = [t for t in out if t.task_id == task]
        outside = [t for t in found if t.task_id == task and t not in out]
        assert len(inside) == min(count, len(inside) + len(outside))
        worst = min((t.reward.value for t in inside if t.reward), default=1.0)
        assert all(t.reward is not None and t.reward.value <= worst for t in outside)


# -- reading beside the loop -------------------------------------------------------------------------------------------


async def test_who_is_cancelled_while_text_is_read_leaves_no_thread_that_reads_on() -> None:
    begun, goes_on, done = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def read() -> None:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait(10)
        done.set()

    reading = asyncio.create_task(run_in_thread(read))
    await begun.wait()
    reading.cancel()
    await asyncio.sleep(0.01)
    assert not reading.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert done.is_set()


# -- what a step shows -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SilentLoss(Loss):
    """Is not called, and gives no metrics."""

    def __call__(self, inputs: LossInput) -> LossOutput:
        raise AssertionError("the trainer here computes nothing")

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        return {}


class Silent(Driver, Algorithm):
    """Trains on everything and gives no metrics."""

    api_version = ">=1.0,<1.2"

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        return pack(trajectories, lambda *_: Credit(1.0, True))

    loss = SilentLoss()


def bench_for(algorithm: Algorithm, shown: list[float]) -> Any:
    """A workbench whose trainer computes nothing, and whose display keeps the losses it was given."""

    async def update(*_: Any, **__: Any) -> dict[str, float]:
        return {"loss": 2.5}

    async def publish() -> None:
        pass

    progress = SimpleNamespace(
        stage=lambda *_: None, advance=lambda: None, numbers=lambda **numbers: shown.append(numbers["loss"])
    )
    return SimpleNamespace(
        config=SimpleNamespace(seed=1),
        stage_algorithms={"sft.algorithm": algorithm, "cpt.algorithm": algorithm},
        progress=progress,
        publish=publish,
        backend=SimpleNamespace(update=update),
        sessions=SimpleNamespace(tokenizer=byte_tokenizer()),
        stopwatch=lambda stage: nullcontext(),
        finish_step=lambda *_: None,
    )


async def test_the_loss_that_is_shown_is_the_trainers_whatever_the_algorithm_tells(tmp_path: Path) -> None:
    shown: list[float] = []
    bench = bench_for(Silent(PluginConfig(), DriverContext()), shown)
    await fine_tune(bench, SFTConfig(steps=2, batch_size=1), [[trajectory(1, reward=1.0)]])
    (tmp_path / "x.txt").write_text("an engine samples tokens\n" * 20)
    config = CPTConfig.model_validate({"stages": [{**STAGE, "data": [tmp_path / "x.txt"], "steps": 2}]})
    await pretrain(bench, config)
    assert shown == [2.5] * 4
