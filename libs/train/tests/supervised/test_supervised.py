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

from ale.errors import ConfigError
from ale.registry.validation import validate
from ale.session.tokenizer import byte_tokenizer
from ale.specs.algorithm import Algorithm
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import FolderTicket, PolicyVersion
from ale.specs.trainer import Loss, LossInput, LossOutput, TrainBatch
from ale.trajectory import Trajectory
from ale_testing.sample_batches import trajectory
from ale_train.batches import Credit, pack
from ale_train.config.run import RunConfig
from ale_train.config.supervised import CPTConfig, CPTStage, Curation, SFTConfig, SFTSteps
from ale_train.pipeline.preflight import plan_run
from ale_train.supervised.pretraining import pretrain, run_in_thread
from ale_train.supervised.sft import fine_tune, learning_rate

STAGE = {"data": ["x.txt"], "steps": 4, "batch_tokens": 64, "sequence_tokens": 32}


def loaded(**sections: Any) -> Any:
    """A run with these sections."""
    return validate(RunConfig, {"tasks": "bash", "model": {"path": "."}, **sections})


def write_model_files(folder: Path, context: int) -> Path:
    """Write what a model's folder must hold, as far as it is read before a run starts."""
    byte_tokenizer().save(folder)
    for name, data in {"config.json": {"max_position_embeddings": context}, "model.safetensors": {}}.items():
        (folder / name).write_text(json.dumps(data))
    return folder


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
    large, small = (write_model_files(tmp_path / str(context), context) for context in (32, 31))
    plan_run(SimpleNamespace(run=loaded(cpt={"stages": [stage]}, model={"path": large})))
    scratch = {"scratch": {"max_length": 16}}
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
            plan_run(SimpleNamespace(run=loaded(**{"model": {"path": large}, **changes})))


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

    async def publish(transport: str, folder: Path) -> PolicyVersion:
        return PolicyVersion(1, FolderTicket(folder))

    async def load_weights(policy: PolicyVersion) -> None:
        pass

    progress = SimpleNamespace(
        stage=lambda *_: None, advance=lambda: None, numbers=lambda **numbers: shown.append(numbers["loss"])
    )
    return SimpleNamespace(
        config=SimpleNamespace(seed=1),
        stage_algorithms={"sft.algorithm": algorithm, "cpt.algorithm": algorithm},
        progress=progress,
        folder=Path("none"),
        store=SimpleNamespace(resumed=False),
        backend=SimpleNamespace(update=update, publish=publish, transports=("memory",)),
        engine=SimpleNamespace(load_weights=load_weights, transports=("memory",)),
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
