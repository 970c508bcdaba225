"""Engines on the trainer's devices (`rl.multiplex`) are refused in a sentence where there is no such device."""

from __future__ import annotations

import pytest

from ale_ray.settings import EnginePlaces, RayConfig, TrainerPlaces


def settings(replicas: int, ranks: int, devices: tuple[int, int] = (0, 0)) -> RayConfig:
    engine = EnginePlaces(replicas=replicas, devices=devices[0])
    return RayConfig(engine=engine, trainer=TrainerPlaces(ranks=ranks, devices=devices[1]))


@pytest.mark.parametrize(
    ("config", "objection"),
    [
        (settings(2, 0), "and cluster.trainer.ranks is 0. Set it to 2 or more, or leave rl.multiplex out."),
        (settings(1, 2), "but cluster.engine.replicas is 1. Raise it to 2 or more, or lower rl.multiplex."),
        (settings(2, 1), "and cluster.trainer.ranks is 1. Raise it to 2 or more, or lower rl.multiplex."),
        (settings(2, 2, (2, 1)), "but cluster.engine.devices is 2 and cluster.trainer.devices 1. Set both to the"),
    ],
)
def test_engines_that_lie_on_no_device_of_the_trainer_are_refused(config: RayConfig, objection: str) -> None:
    said = config.objection_to_lending(2)
    assert said.startswith("rl.multiplex is 2")
    assert objection in said


@pytest.mark.parametrize("config", [settings(2, 2), settings(3, 4, (1, 1))])
def test_one_device_of_a_rank_for_each_lent_engine_is_enough(config: RayConfig) -> None:
    assert config.objection_to_lending(2) == ""
