"""Ranks on a cluster: how many there are, what they compute on, and the folders that all of them must see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from ale.errors import ConfigError
from ale.specs.ranks import RankPlaces
from ale_torch.ranks import World
from ale_torch.training.checkpoint_folder import write_atomically
from ale_torch.training.ranked_trainer import Workers, choose_ranks
from ale_torch.training.worker import RankWorker


class Places:
    """Places of a cluster, in which nothing is started."""

    def __init__(self, device: str, count: int) -> None:
        self.device, self.count = device, count

    def start(
        self, target: str, args: tuple[Any, ...], *, threads: int, launched: Callable[[Workers], None]
    ) -> Workers:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("ranks", "device", "places", "found"),
    [
        (1, "auto", Places("cuda", 4), (4, "cuda")),
        (4, "cuda", Places("cuda", 4), (4, "cuda")),
        (1, "cpu", Places("cuda", 2), (2, "cpu")),
        (1, "auto", Places("cpu", 1), (1, "cpu")),
    ],
)
def test_the_cluster_says_how_many_ranks_there_are_and_nobody_looks_for_gpus_here(
    ranks: int, device: str, places: RankPlaces, found: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale_torch.training.worker.pick_device", None)
    assert choose_ranks(ranks, device, places) == found


@pytest.mark.parametrize(
    ("ranks", "device", "places", "sentence"),
    [
        (3, "auto", Places("cpu", 2), r"trainer\.ranks is 3, but cluster\.trainer\.ranks is 2"),
        (1, "cuda", Places("cpu", 2), r"trainer\.device is 'cuda', but .* no GPU \(cluster\.trainer\.devices\)"),
        (1, "cuda:1", Places("cuda", 2), r"trainer\.device is 'cuda:1', but .* the GPU that it is given"),
    ],
)
def test_settings_that_the_cluster_contradicts_are_refused(
    ranks: int, device: str, places: RankPlaces, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        choose_ranks(ranks, device, places)


class Worker(RankWorker[Any]):
    """A rank without a model."""

    settings: ClassVar[dict[str, Any]] = {}

    def make_learner(self, folder: Path) -> Any:
        pass


@pytest.mark.parametrize(
    ("world", "device", "seen", "taken"),
    [
        (World(5, 8), "cuda", 1, 0),  # Ray shows each process its own GPU alone
        (World(5, 8), "cuda", 4, 1),  # the second node of four GPUs
        (World(5, 8), "cuda", 8, 5),
        (World(), "cuda", 8, 0),
        (World(), "cuda:3", 8, 3),
    ],
)
def test_a_rank_takes_one_of_the_gpus_that_it_sees(
    world: World, device: str, seen: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    assert Worker(world, device).device == torch.device("cuda", taken)
    assert used == [torch.device("cuda", taken)]


class OtherNode(World):
    """Rank 0 of two, of which the other does not see what this one does."""

    def gather(self, value: Any) -> list[Any]:
        """Return this rank's value, and no."""
        return [value, False]


def test_a_folder_that_a_node_does_not_see_is_a_sentence_and_not_half_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    with (
        pytest.raises(ConfigError, match=r"Rank 1 of 2 does not see the folder .*\.saved\.new"),
        write_atomically(tmp_path / "saved", OtherNode(0, 2)),
    ):
        pytest.fail("nothing may be written")
    assert (tmp_path / "saved").is_dir()


def test_a_folder_that_does_not_appear_is_waited_for_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale_torch.training.checkpoint_folder.APPEAR_S", 0.1)
    with (
        pytest.raises(ConfigError, match="does not see"),
        write_atomically(tmp_path / "saved", OtherNode(1, 2)),
    ):
        pytest.fail("nothing may be written")
