"""Steps of a run all of whose engines are on the trainer's devices: they serve whenever something must be sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ale.errors import ConfigError, EngineError
from ale.store.run_store import RunStore
from ale_train.config.rl import RLConfig
from ale_train.rl import loop
from ale_train.rl.loop import Training
from ale_train.rl.stages import Reinforcement

MADE = SimpleNamespace(id="rollout", sampled_tokens=1)
METRICS = {"sampled_tokens": 1.0}


class Engines:
    """One engine; `done` says what it and the trainer did."""

    def __init__(self) -> None:
        self.version = 0
        self.done: list[str] = []
        self.trainer_sleeps = False
        """Whether the trainer has memory to give back."""
        self.serves = asyncio.Event()
        self.serves.set()

    def replica_statuses(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="engine", slots=4, state="serving")]

    async def shrink(self, names: list[str]) -> None:
        self.serves.clear()
        self.done.append("sleeps")

    async def expand(self, names: list[str]) -> None:
        self.serves.set()
        self.done.append("wakes")


class Notes:
    """Takes notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.note = self.notes.append


def training_with(engines: Engines, rollouts: list[Any], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Training:
    """A loop with a trainer that does nothing, and batches of these rollouts."""

    async def pack(*arguments: Any, **named: Any) -> None:
        engines.done.append("packs")

    async def train(*arguments: Any) -> dict[str, float]:
        engines.done.append("trains")
        return dict(METRICS)

    async def sleep() -> bool:
        return engines.trainer_sleeps

    async def publish(bench: Any) -> None:
        engines.done.append("publishes")
        engines.version += 1

    async def next_batch(step: int) -> list[Any]:
        return []

    for name, function in {"pack_step": pack, "train_step": train, "publish": publish}.items():
        monkeypatch.setattr(loop, name, function)
    monkeypatch.setattr(loop, "rollout_metrics", lambda *arguments: {})
    bench: Any = SimpleNamespace(
        engine=engines,
        backend=SimpleNamespace(sleep=sleep),
        stopwatch=lambda stage: nullcontext(),
        rollouts=SimpleNamespace(metrics=lambda stage: {}),
        finish_step=lambda *arguments: None,
        algorithm=SimpleNamespace(state=dict),
        evaluations={},
        seconds={},
        store=None,
        config=SimpleNamespace(eval=None),
        resource_metrics=dict,
        progress=Notes(),
    )
    producer: Any = SimpleNamespace(
        ready=0,
        finished_at=0.0,
        stored_rollouts=frozenset,
        is_open=lambda: True,
        next_batch=next_batch,
        require_rollouts=lambda groups, step: rollouts,
        metrics=dict,
        close_step=lambda: None,
        steps_done=1,
        state=dict,
    )
    slots: Any = SimpleNamespace(limit=4)
    made = Training(bench, RLConfig(multiplex=1, **settings), producer, slots)
    made._watch.step_metrics = lambda step, trained: {}  # type: ignore[method-assign]
    return made


async def test_the_engines_sleep_from_the_batch_until_the_weights_are_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines = Engines()
    metrics = await training_with(engines, [MADE], monkeypatch)._step(1)
    assert engines.done == ["sleeps", "packs", "trains", "publishes", "wakes"]
    assert metrics["lent"] == 1.0
    assert "tokens_per_s" in metrics


@pytest.mark.parametrize(("trainer_sleeps", "again"), [(False, []), (True, ["sleeps"])])
async def test_they_wake_up_for_an_evaluation_for_which_the_trainer_waits(
    trainer_sleeps: bool, again: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = Engines()
    engines.trainer_sleeps = trainer_sleeps
    training = training_with(engines, [MADE], monkeypatch)

    async def evaluate() -> None:
        while "trains" not in engines.done:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await engines.serves.wait()
        engines.done.append("is evaluated")

    training._evaluation = asyncio.create_task(evaluate())
    async with asyncio.timeout(60):
        await training._step(1)
        await training._step(2)
    first = ["sleeps", "packs", "trains", "wakes", "is evaluated", *again, "publishes"]
    then = ["wakes"] if trainer_sleeps else []
    assert engines.done == [*first, *then, "sleeps", "packs", "trains", "publishes", "wakes"], "only as long as it runs"


@pytest.mark.parametrize("trainer_sleeps", [False, True])
async def test_a_checkpoint_is_written_by_a_trainer_that_has_what_it_gave_back(
    trainer_sleeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = Engines()
    engines.trainer_sleeps = trainer_sleeps
    training = training_with(engines, [MADE], monkeypatch)

    async def write(*arguments: Any) -> None:
        engines.done.append("saves")

    monkeypatch.setattr(loop, "write_checkpoint", write)
    monkeypatch.setattr(loop, "seconds_so_far", lambda store: 0.0)
    await training._step(1)
    engines.done.clear()
    await training._save()
    async with asyncio.timeout(60):
        await engines.serves.wait()
    assert engines.done == (["sleeps", "saves", "wakes"] if trainer_sleeps else ["saves"])


@pytest.fixture
def run_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs three steps as a run does, with a checkpoint after each; returns what was done, in its order."""

    async def run(*, trainer_sleeps: bool, evaluated: bool = False, **settings: Any) -> list[str]:
        engines = Engines()
        engines.trainer_sleeps = trainer_sleeps
        training = training_with(engines, [MADE], monkeypatch, steps=3, checkpoint_every=1, **settings)

        async def save(folder: Path) -> None:
            assert not (engines.trainer_sleeps and engines.serves.is_set()), "the trainer has no memory then"
            engines.done.append("saves")
            await asyncio.to_thread(folder.mkdir, parents=True)

        async def evaluate(bench: Any, label: str, step: int) -> None:
            if evaluated:
                await engines.serves.wait()
                engines.done.append("is evaluated")

        def close_step() -> None:
            training._producer.steps_done += 1

        bench: Any = training._bench

        async def probe(*arguments: Any) -> None:
            """It would take the devices once more, after the first step alone."""

        monkeypatch.setattr(loop, "probe", probe)
        monkeypatch.setattr(loop, "evaluate_policy", evaluate)
        bench.folder, bench.policy_folder, bench.backend.save = tmp_path, None, save
        bench.config = SimpleNamespace(eval=SimpleNamespace(every=1) if evaluated else None)
        bench.sessions = SimpleNamespace()
        bench.rollouts.advance, bench.rollouts.running = lambda: None, {}
        producer: Any = training._producer
        producer.steps_done, producer.close_step, producer.admit_more = 0, close_step, lambda: None
        with RunStore.create(tmp_path) as bench.store:
            bench.store.add_event("run_started")
            async with asyncio.timeout(30):
                async with training.devices.held():  # as before the first step
                    pass
                await training.run()
        assert sorted(folder.name for folder in (tmp_path / "checkpoints").glob("step_*"))[-1] == "step_3"
        return engines.done

    return run


TRAINED = ["packs", "trains", "publishes"]


async def test_a_checkpoint_is_written_before_the_devices_are_lent_and_costs_no_switch(
    run_steps: Callable[..., Any],
) -> None:
    done = await run_steps(trainer_sleeps=True)
    step = ["sleeps", *TRAINED, "saves"]
    assert done == ["sleeps", "wakes", *step, "wakes", *step, "wakes", *step]
    assert (done.count("sleeps"), done.count("wakes")) == (1 + 3, 3), "the first of each before the first step"


async def test_a_trainer_that_does_not_sleep_saves_while_the_engines_serve_again(
    run_steps: Callable[..., Any],
) -> None:
    step = ["sleeps", *TRAINED]
    assert await run_steps(trainer_sleeps=False) == [*[*step, "wakes", "saves"] * 2, *step, "saves"]


async def test_an_evaluation_that_the_next_step_waits_for_comes_before_the_checkpoint(
    run_steps: Callable[..., Any],
) -> None:
    done = await run_steps(trainer_sleeps=True, evaluated=True)
    step = ["sleeps", *TRAINED, "wakes", "is evaluated", "sleeps", "saves"]
    last = ["sleeps", *TRAINED, "saves", "wakes", "is evaluated", "sleeps"]
    assert done == ["sleeps", "wakes", *[*step, "wakes"] * 2, *last]


async def test_an_evaluation_beside_the_training_waits_for_the_checkpoint(run_steps: Callable[..., Any]) -> None:
    done = await run_steps(trainer_sleeps=True, evaluated=True, async_ratio=1)
    step = ["sleeps", *TRAINED, "saves", "wakes", "is evaluated"]
    assert done == ["sleeps", "wakes", *step * 3, "sleeps"]


async def test_the_last_checkpoint_is_written_also_if_engines_do_not_fall_asleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines = Engines()
    engines.trainer_sleeps = True
    training = training_with(engines, [MADE], monkeypatch)
    written, notes = [], training._bench.progress.notes

    async def write(*arguments: Any) -> None:
        written.append("saves")

    async def refuse(names: list[str]) -> None:
        raise EngineError("It does not fall asleep.")

    monkeypatch.setattr(loop, "write_checkpoint", write)
    monkeypatch.setattr(loop, "seconds_so_far", lambda store: 0.0)
    await training._step(1)
    monkeypatch.setattr(engines, "shrink", refuse)
    with pytest.raises(EngineError, match="It does not fall asleep"):
        await training._save()
    await training._save(last=True)
    assert written == ["saves"]
    assert notes == ["The engines on the trainer's devices did not fall asleep."]


async def test_they_wake_up_after_a_step_without_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines()
    training = training_with(engines, [], monkeypatch)
    for step in (1, 2):
        metrics = await training._step(step)
        assert metrics["lent"] == 1.0, "else the next batch would never be there"
    assert engines.done == ["sleeps", "wakes"] * 2


def test_an_engine_that_cannot_do_it_is_refused_before_any_stage_works() -> None:
    bench: Any = SimpleNamespace(engine=SimpleNamespace())
    with pytest.raises(ConfigError, match=r"rl\.multiplex is 1"):
        Reinforcement(RLConfig(multiplex=1)).check_tasks(bench)
