"""IPA through the trainer `torch` on a tiny model: ratios move, rewarded tokens become likelier."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.loss_samples import TOKENS, random_rollouts, write_small_policy

from ale.specs.algorithm import RolloutHistory
from ale.specs.driver import DriverContext
from ale.specs.trainer import LossInput, LossOutput
from ale.task import Task, TaskTests
from ale.trajectory import Chunk, Sequence, Trajectory
from ale_ipa import IPA
from ale_testing.function_loss import FunctionLoss

trainer_torch = pytest.importorskip("ale_trainer_torch")

Make = Callable[..., IPA]
Build = Callable[..., Trajectory]
Open = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of two narrow layers."""
    return write_small_policy(tmp_path_factory.mktemp("model"))


@pytest.fixture
def opened(model: Path) -> Open:
    """Opens a trainer with the model loaded."""

    @asynccontextmanager
    async def open_trainer(**settings: Any) -> AsyncIterator[Any]:
        config = trainer_torch.TorchTrainer.Config(**{"device": "cpu", "threads": 1, **settings})
        async with trainer_torch.TorchTrainer(config, DriverContext(seed=2)) as trainer:
            await trainer.load(model)
            yield trainer

    return open_trainer


async def test_the_ratio_is_one_before_the_first_update_and_moves_with_it(
    opened: Open, make: Make, build: Build
) -> None:
    ipa = make()
    packed = ipa.batch(random_rollouts(5))
    assert packed is not None
    async with opened(lr=1e-2) as trainer:
        batch = replace(packed, old_logprobs=await trainer.logprobs(packed))
        seen = [ipa.loss.metrics(await trainer.update(batch, ipa.loss)) for _ in range(3)]
    assert (seen[0]["ratio"], seen[0]["ratio_std"], seen[0]["kl_old"]) == (1.0, 0.0, 0.0)
    assert seen[2]["kl_old"] > seen[1]["kl_old"] > 0
    assert seen[2]["ratio_std"] > 0


@pytest.mark.parametrize("config", [{}, {"level": "trajectory"}, {"return_signal": "group_centered"}])
async def test_a_rewarded_token_becomes_likely_by_trial(
    opened: Open, make: Make, build: Build, config: dict[str, Any]
) -> None:
    """Two choices of 40 tokens each, rewarded only where both are 7 or less; sampled from the policy itself."""
    ipa = make(group_size=64, **config)
    rng = np.random.default_rng(0)
    success = []
    async with opened(lr=2e-2) as trainer:
        for _ in range(25):
            tokens, logprobs = await sample(trainer, rng)
            done = [
                build(
                    str(i),
                    float(max(pair) <= 7),
                    sequences=(Sequence((0, int(pair[0]), 9, int(pair[1])), ()),),
                    chunks=tuple(
                        Chunk(k, 0, 1 + 2 * k, 2 + 2 * k, (float(logprobs[i, k]),), (0,), "stop") for k in range(2)
                    ),
                )
                for i, pair in enumerate(tokens)
            ]
            success.append(sum(t.passed for t in done) / len(done))
            packed = ipa.batch(done)
            if packed is None:
                continue
            old = await trainer.logprobs(packed)
            assert np.abs(old - packed.engine_logprobs).max() < 1e-3
            await trainer.update(replace(packed, old_logprobs=old), ipa.loss)
    assert success[0] < 0.2
    assert sum(success[-3:]) / 3 > 0.9


async def sample(trainer: Any, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """64 pairs of tokens behind the contexts (0,) and (0, first, 9), and their log-probabilities."""
    tokens, logprobs = np.zeros((64, 2), np.int64), np.zeros((64, 2))
    model = trainer._workers.target.learner.model
    with torch.no_grad():
        for k in range(2):
            context = np.zeros((64, 1 + 2 * k), np.int64)
            if k:
                context[:, 1], context[:, 2] = tokens[:, 0], 9
            table = torch.log_softmax(model(input_ids=torch.from_numpy(context)).logits[:, -1], -1).double().numpy()
            for i in range(64):
                p = np.exp(table[i])
                tokens[i, k] = rng.choice(TOKENS, p=p / p.sum())
                logprobs[i, k] = table[i, tokens[i, k]]
    return tokens, logprobs


async def test_a_failing_chunk_with_a_large_ratio_pushes_no_harder_than_one(
    opened: Open, make: Make, build: Build
) -> None:
    ipa = make(negative_signal=-1.0)
    packed = ipa.batch([build("t", 0.0, (3,))])
    assert packed is not None
    gradients: list[list[float]] = []

    def watched(inputs: LossInput) -> LossOutput:
        out = ipa.loss(inputs)
        gradients.append(torch.autograd.grad(out.loss, inputs.logprobs, retain_graph=True)[0].tolist())
        return out

    async with opened() as trainer:
        now = await trainer.logprobs(packed)
        for shift in (-2.0, 0.0, 2.0):
            old = np.where(packed.chunk_ids >= 0, now - shift, 0).astype(np.float32)
            # The engine agrees with pi_old: only the ratio to the current policy is at stake.
            await trainer.update(replace(packed, old_logprobs=old, engine_logprobs=old), FunctionLoss(watched))
            now = await trainer.logprobs(packed)
    third = 1 / 3
    assert gradients[0] == pytest.approx([third * np.exp(-2.0)] * 3, rel=1e-3)
    assert gradients[1] == pytest.approx([third] * 3, rel=1e-3)
    assert gradients[2] == pytest.approx([third] * 3, rel=1e-3)


@pytest.mark.parametrize("lambda_il", [0.0, 0.5])
async def test_where_every_rollout_fails_the_expert_is_learnt_by_imitation_alone(
    opened: Open, make: Make, build: Build, lambda_il: float
) -> None:
    """Three tokens of 40 each, which rollouts that always fail never show; the expert's are 1, 2 and 3."""
    ipa = make(
        experts={}, start="rollback", group_size=4, negative_signal=0.0, lambda_il=lambda_il, normalization="trajectory"
    )
    path = build(
        "expert",
        1.0,
        task_id="a",
        sequences=(Sequence((0, 1, 9, 2, 9, 3), ()),),
        chunks=tuple(Chunk(k, 0, 1 + 2 * k, 2 + 2 * k, (), (), "stop", sampled=False) for k in range(3)),
    )
    task = Task(id="a", instruction="Do it.", tests=TaskTests(command="true"))
    (request, *_) = ipa.plan([task], RolloutHistory(1, 3, demonstrations=[path]))
    assert request.start_chunk == 2
    failed = [
        build(
            str(i),
            0.0,
            group=request.group,
            task_id="a",
            start_chunk=2,
            sequences=(Sequence((0, 1, 9, 2, 9, 20 + i), ()),),
            chunks=(*path.chunks[:2], Chunk(2, 0, 5, 6, (-3.7,), (0,), "stop")),
        )
        for i in range(4)
    ]
    packed = ipa.batch(failed)
    if lambda_il == 0:
        assert packed is None, "nothing else carries a gradient here"
        return
    assert packed is not None
    losses = []
    async with opened(lr=2e-2) as trainer:
        for _ in range(40):
            batch = replace(packed, old_logprobs=await trainer.logprobs(packed))
            losses.append(ipa.loss.metrics(await trainer.update(batch, ipa.loss))["il_loss"])
    assert losses[0] > 2
    assert losses[-1] < 0.2


@pytest.mark.parametrize(("start", "success"), [("beginning", 0.0), ("rollback", 0.8), ("parallel", 0.8)])
async def test_a_path_that_is_never_found_from_the_beginning_is_learnt_along_an_expert(
    opened: Open, make: Make, build: Build, start: str, success: float
) -> None:
    """Four choices of 40 tokens each, of which one path alone is rewarded: a chance of one in 2.5 million."""
    path = (1, 2, 3, 4)
    ipa = make(experts=None if start == "beginning" else {}, group_size=16, start=start)
    expert = chain(build, "expert", path, np.zeros(4), 4, 1.0)
    task = Task(id="a", instruction="Do it.", tests=TaskTests(command="true"))
    rng = np.random.default_rng(0)
    done: list[Trajectory] = []
    async with opened(lr=1e-2) as trainer:
        model = trainer._workers.target.learner.model
        for step in range(1, 81):
            requests = ipa.plan([task], RolloutHistory(step, 3, done, demonstrations=[expert]))
            done = []
            for (group, k), members in groupby(requests, key=lambda r: (r.group, r.start_chunk)):
                for tokens, logprobs in zip(*follow(model, path[:k], len(list(members)), rng), strict=True):
                    t = chain(build, f"{step}.{len(done)}", tokens, logprobs, k, float(tuple(tokens) == path))
                    done.append(replace(t, group=group, step=step, start_chunk=k))
            packed = ipa.batch(done)
            if packed is not None:
                await trainer.update(replace(packed, old_logprobs=await trainer.logprobs(packed)), ipa.loss)
        found = [tuple(tokens) == path for tokens in follow(model, (), 64, rng)[0]]
    assert (sum(found) / 64 >= success) if success else not any(found)


def chain(build: Build, name: str, tokens: Any, logprobs: Any, start: int, reward: float) -> Trajectory:
    """A trajectory of one-token chunks, those before `start` replayed."""
    ids = (0, *(int(i) for token in tokens for i in (token, 9)))
    chunks = tuple(
        Chunk(k, 0, 1 + 2 * k, 2 + 2 * k, (), (), "stop", sampled=False)
        if k < start
        else Chunk(k, 0, 1 + 2 * k, 2 + 2 * k, (float(logprobs[k]),), (0,), "stop")
        for k in range(len(tokens))
    )
    return build(name, reward, task_id="a", sequences=(Sequence(ids, ()),), chunks=chunks)


def follow(
    model: Any, prefix: tuple[int, ...], rows: int, rng: np.random.Generator
) -> tuple[list[list[int]], list[list[float]]]:
    """For each row four choices, the first ones given; and their log-probabilities (0 of what was given)."""
    tokens, logprobs = [[*prefix] for _ in range(rows)], [[0.0] * len(prefix) for _ in range(rows)]
    for _ in range(4 - len(prefix)):
        context = torch.tensor([[0, *(i for token in row for i in (token, 9))] for row in tokens])
        with torch.no_grad():
            table = torch.log_softmax(model(input_ids=context).logits[:, -1], -1).double().numpy()
        for i, row in enumerate(table):
            p = np.exp(row)
            tokens[i].append(int(rng.choice(40, p=p / p.sum())))
            logprobs[i].append(float(row[tokens[i][-1]]))
    return tokens, logprobs
