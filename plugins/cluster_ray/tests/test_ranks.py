"""Ranks as actors on two nodes answer together, fail together, and leave no process; a trainer does not notice."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.ray_nodes import ENVIRONMENT, connected_nodes

os.environ |= ENVIRONMENT
ray = pytest.importorskip("ray")
torch = pytest.importorskip("torch")

from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402
from support.loss_samples import TOKENS, write_small_policy  # noqa: E402

from ale.errors import ConfigError, TrainerError  # noqa: E402
from ale.specs.driver import DriverContext  # noqa: E402
from ale.specs.ranks import RankPlaces, Workers  # noqa: E402
from ale.specs.trainer import ChunkTable, LossInput, LossOutput, TrainBatch  # noqa: E402
from ale_ray import actor_lifecycle  # noqa: E402
from ale_ray import ranks as ranks_module  # noqa: E402
from ale_ray.ranks import RayRanks  # noqa: E402
from ale_testing.function_loss import FunctionLoss  # noqa: E402
from ale_testing.processes import running  # noqa: E402
from ale_torch.ranks import RanksLost  # noqa: E402
from ale_torch.weights import receiver  # noqa: E402
from ale_trainer_torch import TorchTrainer  # noqa: E402

MEMBER = "ray_member:Member"
NAMED = r"Rank %d of 2 \(process \d+ on the node [\d.]+\) failed in '%s', and not all did, so all were ended: "
Start = Callable[..., RayRanks]


@pytest.fixture(scope="module")
def options() -> Iterator[list[dict[str, Any]]]:
    """Options of two ranks, each on a node of its own; both nodes are on this machine, and have room for two ranks."""
    with pytest.MonkeyPatch.context() as patch, connected_nodes(2, cpus=2):
        patch.syspath_prepend(Path(__file__).parent)  # ranks can import what their owner can
        group = ray.util.placement_group([{"CPU": 2}] * 2, strategy="STRICT_SPREAD")
        assert group.wait(60)
        yield [
            {"num_cpus": 1, "scheduling_strategy": PlacementGroupSchedulingStrategy(group, bundle)}
            for bundle in range(2)
        ]


@pytest.fixture(scope="module")
def lasting(options: list[dict[str, Any]]) -> Iterator[RayRanks]:
    """Two ranks that tests leave alive."""
    ranks = RayRanks(MEMBER, count=2, threads=2, backend="gloo", options=options)
    yield ranks
    ranks.close()


@pytest.fixture
def start(options: list[dict[str, Any]]) -> Iterator[Start]:
    """Starts two ranks with these arguments of theirs; they are closed in the end."""
    started: list[RayRanks] = []

    def start_two(*args: Any, **how: Any) -> RayRanks:
        settings: dict[str, Any] = {
            "target": MEMBER,
            "count": 2,
            "threads": 1,
            "backend": "gloo",
            "options": options,
            **how,
        }
        ranks = RayRanks(args=args, **settings)
        started.append(ranks)
        return ranks

    yield start_two
    for ranks in started:
        ranks.close()


def processes_of(ranks: RayRanks) -> list[psutil.Process]:
    return [psutil.Process(pid) for _, _, _, pid in ranks.call("describe", 0)]


def assert_all_end(processes: list[psutil.Process]) -> None:
    """Ray ends a process a moment after it says that its actor is dead."""
    until = time.monotonic() + 120
    while running({process.pid for process in processes}):
        assert time.monotonic() < until, "a rank lives on"
        time.sleep(0.05)


def test_each_rank_answers_from_its_node_and_all_know_of_each_other(lasting: RayRanks) -> None:
    answers = lasting.call("describe", 10)
    assert [(rank, total) for rank, total, _, _ in answers] == [(0, 21), (1, 21)]
    assert len({node for _, _, node, _ in answers}) == 2
    assert len({os.getpid(), *(pid for _, _, _, pid in answers)}) == 3


def test_arguments_and_answers_are_the_ranks_own(lasting: RayRanks) -> None:
    sent = np.ones(2**20, np.float32)  # too large to travel without the object store
    for found in lasting.call("double", sent):
        assert found.flags.writeable
        assert (found == 2).all()
    assert (sent == 1).all()
    offset = 5
    assert lasting.call("apply", lambda world: world.rank + offset) == [5, 6], "also functions that no module has"


def test_a_rank_computes_with_its_threads_and_knows_the_address_of_its_node(lasting: RayRanks) -> None:
    found = lasting.call("apply", lambda world: (os.environ["OMP_NUM_THREADS"], torch.get_num_threads(), world.host))
    address = ray.util.get_node_ip_address()
    assert found == [("2", 2, address)] * 2


def test_what_all_raise_is_raised_as_it_is_and_they_go_on(lasting: RayRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ale_torch.ranks.group.OTHERS_S", 0.1)
    with pytest.raises(ConfigError, match=r"^The folder is damaged\.$") as refused:
        lasting.call("load", 0.7)
    assert type(refused.value) is ConfigError
    monkeypatch.undo()
    with pytest.raises(AttributeError, match="no attribute 'fly'"):
        lasting.call("fly")
    with pytest.raises(ZeroDivisionError, match="nothing to divide by") as raised:
        lasting.call("fail", 0, 1)
    assert any("in fail" in note for note in raised.value.__notes__)
    assert [rank for rank, *_ in lasting.call("describe", 0)] == [0, 1]


def test_if_only_some_fail_all_are_ended(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    two = start()
    running = processes_of(two)
    monkeypatch.setattr("ale_torch.ranks.group.OTHERS_S", 0.5)
    with pytest.raises(RanksLost, match=NAMED % (1, "fail") + "ZeroDivisionError: nothing to divide by$"):
        two.call("fail", 1)
    with pytest.raises(RanksLost, match="Rank 1 of 2"):
        two.call("describe", 0)
    assert_all_end(running)


def test_a_rank_that_is_killed_is_an_error_and_not_a_wait(start: Start) -> None:
    two = start()
    running = processes_of(two)
    began = time.monotonic()
    with pytest.raises(RanksLost, match=NAMED % (0, "kill") + "its process has ended"):
        two.call("kill", 0)
    assert time.monotonic() - began < 120, "ranks wait for each other for half an hour"
    assert_all_end(running)


def test_a_rank_that_died_between_calls_is_found_by_the_next_one(start: Start) -> None:
    two = start()
    running = processes_of(two)
    running[1].kill()
    with pytest.raises(RanksLost, match=NAMED % (1, "describe") + "its process has ended"):
        two.call("describe", 0)
    two.close()
    with pytest.raises(RanksLost, match="its process has ended"):
        two.call("describe", 0)
    assert_all_end(running)


def test_a_rank_that_stands_still_is_lost_and_one_that_works_for_long_is_not(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_module, "LOOK_S", 1.0)
    # A busy machine may hold up a rank that moves for some of these seconds.
    monkeypatch.setattr(actor_lifecycle, "SILENT_S", 4.0)
    monkeypatch.setattr("ale_torch.ranks.group.OTHERS_S", 0.5)
    two = start()
    running = processes_of(two)
    assert two.call("apply", lambda world: time.sleep(5.5)) == [None, None]
    running[1].suspend()
    with pytest.raises(RanksLost, match=NAMED % (1, "describe") + r"it did not answer for 4 s, and was ended\.$"):
        two.call("describe", 0)
    assert_all_end(running)


def test_a_rank_that_stopped_can_be_ended_from_another_thread(start: Start) -> None:
    two = start()
    running = processes_of(two)
    running[1].send_signal(signal.SIGSTOP)
    timer = threading.Timer(0.5, two.kill)
    timer.start()
    with pytest.raises(TrainerError, match=r"^The ranks were ended by force\.$") as raised:
        two.call("describe", 0)
    assert type(raised.value) is TrainerError, "they were not lost: that is what was asked for"
    timer.join()
    two.kill()
    assert_all_end(running)


def test_ranks_that_are_not_ready_can_be_ended_from_another_thread(start: Start) -> None:
    with pytest.raises(TrainerError, match=r"^The ranks were ended by force\.$"):
        start(launched=lambda ranks: ranks.kill())


def test_an_actor_that_finds_no_place_is_an_error_and_not_a_wait(start: Start) -> None:
    nowhere = [{"num_cpus": 1, "resources": {"nowhere": 1}}] * 2
    with pytest.raises(RanksLost, match=r"Rank 0 of 2 failed in 'start'.* it did not answer within 2 s\."):
        start(options=nowhere, start_s=2.0)


def test_a_constructor_that_fails_is_raised(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no folder"):
        start(tmp_path / "missing")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        start(target="no_such_module:Member")


def test_ranks_close_what_they_hold_and_end(start: Start, tmp_path: Path) -> None:
    two = start(tmp_path)
    running = processes_of(two)
    two.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0 was closed", "1 was closed"]
    assert_all_end(running)
    with pytest.raises(TrainerError, match=r"^The ranks were closed\.$"):
        two.call("describe", 0)
    two.close()


class Places:
    """Room for two ranks of a trainer."""

    device = "cpu"
    count = 2

    def __init__(self, options: list[dict[str, Any]]) -> None:
        self.options = options

    def start(
        self, target: str, args: tuple[Any, ...], *, threads: int, launched: Callable[[Workers], None]
    ) -> Workers:
        return RayRanks(target, args, count=2, threads=threads, backend="gloo", options=self.options, launched=launched)


def small_batch() -> TrainBatch:
    """Four trajectories of a sequence and a chunk each."""
    rng = np.random.default_rng(1)
    lengths = np.array([7, 5, 9, 6])
    owners = np.repeat(np.arange(4), lengths)
    trained = np.concatenate([np.arange(n) >= 2 for n in lengths])
    returns = rng.normal(size=4).astype(np.float32)
    table = ChunkTable(np.arange(4), np.zeros(4, np.int64), np.ones(4, np.int64), returns, returns > 0)
    engine = np.where(trained, -3.7, 0).astype(np.float32)
    tokens = rng.integers(0, TOKENS, len(owners))
    return TrainBatch(tokens, lengths, np.arange(4), np.where(trained, owners, -1), engine, table, float(trained.sum()))


@pytest.mark.slow
async def test_a_trainer_on_a_cluster_makes_the_same_updates_and_its_weights_come_from_its_node(
    options: list[dict[str, Any]], tmp_path: Path
) -> None:
    def likelihood(inputs: LossInput) -> LossOutput:  # ranks get it by value, since they cannot import this file
        return LossOutput(-inputs.logprobs.sum() / inputs.normalizer, {"n": torch.tensor(float(len(inputs.logprobs)))})

    folder, batch = write_small_policy(tmp_path / "model"), small_batch()
    places: RankPlaces = Places(options)
    local = TorchTrainer.Config(device="cpu", threads=1, ranks=2)
    async with (
        TorchTrainer(local, DriverContext(seed=5)) as here,
        TorchTrainer(TorchTrainer.Config(threads=1), DriverContext(seed=5, ranks=places)) as there,
    ):
        assert there.transports == ("folder", "gloo")
        found = {}
        for trainer in (here, there):
            await trainer.load(folder)
            totals = [await trainer.update(batch, FunctionLoss(likelihood)) for _ in range(2)]
            found[trainer] = (totals, await trainer.logprobs(batch))
        for name in ("loss", "grad_norm", "n", "tokens"):
            for mine, others in zip(found[there][0], found[here][0], strict=True):
                assert mine[name] == pytest.approx(others[name], rel=1e-6), name
        assert np.abs(found[there][1] - found[here][1]).max() < 1e-6
        ticket: Any = (await there.publish("gloo", tmp_path / "unused")).ticket
        assert ticket.host == ray.util.get_node_ip_address()
        request = ticket.as_request("engine", 1)
        weights = await asyncio.to_thread(lambda: dict(receiver.receive(0, torch.device("cpu"), **request)))
        assert set(weights) == {spec.name for spec in ticket.tensors}
        receiver._groups.clear()
        await there.save(tmp_path / "saved")
        await here.restore(tmp_path / "saved")
        with pytest.raises(ConfigError, match=r"no config\.json"):
            await there.load(tmp_path)
