"""The keys of `cluster: {use: ray}`."""

from __future__ import annotations

from pydantic import Field

from ale.specs.choice import Section
from ale.specs.driver import PluginConfig


class EnginePlaces(Section):
    """Where the engines are."""

    replicas: int = Field(1, gt=0, description="Engines, each an actor with the settings of the section `engine`.")
    cpus: float = Field(1.0, gt=0, description="CPUs that Ray counts for each engine.")
    devices: int = Field(0, ge=0, description="GPUs of each engine; all of them are on one node.")


class TrainerPlaces(Section):
    """Where the trainer's ranks are."""

    ranks: int = Field(1, ge=0, description="Ranks, each an actor; 0: the trainer works where the run was started.")
    cpus: float = Field(1.0, gt=0, description="CPUs that Ray counts for each rank.")
    devices: int = Field(0, ge=0, le=1, description="GPUs of each rank.")


class RolloutPlaces(Section):
    """Where episodes are made."""

    workers: int = Field(
        0,
        ge=0,
        description="Actors that make episodes, with sandboxes on their nodes; 0: they are made where the run was "
        "started.",
    )
    cpus: float = Field(1.0, gt=0, description="CPUs that Ray counts for each worker.")


class RayConfig(PluginConfig):
    """See the module."""

    address: str | None = Field(
        None,
        description="Ray's address: auto for the Ray that runs on this machine, or one such as ray-head:6379; null "
        "starts one for this run on this machine.",
    )
    engine: EnginePlaces = Field(EnginePlaces(), description="Where the engines are.")
    trainer: TrainerPlaces = Field(TrainerPlaces(), description="Where the trainer's ranks are.")
    rollout: RolloutPlaces = Field(RolloutPlaces(), description="Where episodes are made.")
    start_s: float = Field(180.0, gt=0, description="How long an actor may take until it has started.")
