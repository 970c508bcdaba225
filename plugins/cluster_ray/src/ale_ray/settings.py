"""The keys of `cluster: {use: ray}`."""

from __future__ import annotations

from pydantic import Field, PrivateAttr

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
    """The settings of the cluster `ray`."""

    address: str | None = Field(
        None,
        description="Ray's address: auto for the Ray that runs on this machine, or one such as ray-head:6379; null "
        "starts one for this run on this machine.",
    )
    engine: EnginePlaces = Field(EnginePlaces(), description="Where the engines are.")
    trainer: TrainerPlaces = Field(TrainerPlaces(), description="Where the trainer's ranks are.")
    rollout: RolloutPlaces = Field(RolloutPlaces(), description="Where episodes are made.")
    start_s: float = Field(180.0, gt=0, description="How long an actor may take until it has started.")
    _scaled: dict[str, int] = PrivateAttr(default_factory=dict)

    def count_of(self, role: str) -> int:
        """Return how many engines (`engine`) or rollout workers (`rollout`) the run has."""
        return self._scaled.get(role, self.engine.replicas if role == "engine" else self.rollout.workers)

    def scale(self, role: str, count: int) -> None:
        """Have another number of them from now on. It is remembered here, since a run that has lost a rank goes on in
        the same process with a new cluster of the same settings."""
        self._scaled[role] = count

    def objection_to_lending(self, count: int) -> str:
        """Return why so many engines cannot lie on the trainer's devices (`rl.multiplex`), as a sentence; an empty one
        if they can. Each of them lies on the device of one rank."""
        asked, engine, trainer = f"rl.multiplex is {count}", self.engine, self.trainer
        if not trainer.ranks:
            return (
                f"{asked}: these engines lie on the devices of the trainer's ranks, and cluster.trainer.ranks is 0. "
                f"Set it to {count} or more, or leave rl.multiplex out."
            )
        if count > engine.replicas:
            return (
                f"{asked}, but cluster.engine.replicas is {engine.replicas}. Raise it to {count} or more, or lower "
                "rl.multiplex."
            )
        if count > trainer.ranks:
            return (
                f"{asked}: each of these engines lies on the device of one rank, and cluster.trainer.ranks is "
                f"{trainer.ranks}. Raise it to {count} or more, or lower rl.multiplex."
            )
        if engine.devices != trainer.devices:
            return (
                f"{asked}: each of these engines has what one rank has, but cluster.engine.devices is "
                f"{engine.devices} and cluster.trainer.devices {trainer.devices}. Set both to the same number."
            )
        return ""
