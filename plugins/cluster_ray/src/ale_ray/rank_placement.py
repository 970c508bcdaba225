"""Where the trainer's ranks are: in one placement group, on as few nodes as they fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ale.errors import ConfigError
from ale_ray.actor_calls import ask
from ale_ray.ray_connection import describe_gpus, describe_nodes
from ale_ray.settings import EnginePlaces, TrainerPlaces


class RayRankPlaces:
    """The places of the trainer's ranks in a placement group of Ray."""

    def __init__(self, settings: TrainerPlaces, start_s: float) -> None:
        self.device = "cuda" if settings.devices else "cpu"
        self.count = settings.ranks
        self._settings, self._start_s = settings, start_s
        self._group: Any = None
        self._bundles: list[int] = []
        """The bundle of each rank: neighbouring ranks, which talk most, are on one node."""
        self._nodes: dict[int, str] = {}
        """The node of each bundle."""
        self._lent, self._engine = 0, EnginePlaces()

    async def reserve(self, engine: EnginePlaces, lent: int) -> None:
        """Take the room of the ranks, and beside the first of them that of `lent` engines, which share their devices.
        Raises `ConfigError` if there is none."""
        from ray.util.placement_group import placement_group, placement_group_table

        s = self._settings
        self._lent, self._engine = lent, engine
        bundles = [{"CPU": s.cpus + (engine.cpus if rank < lent else 0)} for rank in range(s.ranks)]
        self._group = placement_group([b | ({"GPU": 1.0} if s.devices else {}) for b in bundles], strategy="PACK")
        try:
            await ask("the trainer's placement group", self._group.ready(), self._start_s)
        except TimeoutError:
            raise ConfigError(
                f"cluster.trainer: Ray found no room for {s.ranks} ranks of {s.cpus:g} CPUs and {s.devices} GPUs in "
                f"{self._start_s:g} s; it has {describe_nodes()}, of which others may use a part."
            ) from None
        table = await asyncio.to_thread(placement_group_table, self._group)
        nodes = self._nodes = {bundle: str(node) for bundle, node in table["bundles_to_node_id"].items()}
        self._bundles = sorted(range(s.ranks), key=lambda bundle: (nodes[bundle], bundle))

    def engine_options(self, number: int) -> dict[str, Any]:
        """Return the options of the actor of a lent engine, by its number among them."""
        return self._options(self._bundles.index(number), self._engine.cpus)

    def start(self, target: str, args: tuple[Any, ...], *, threads: int, launched: Callable[[Any], None]) -> Any:
        """Start the ranks. It blocks; see `RayRanks`."""
        from ale_ray.ranks import RayRanks
        from ale_torch.ranks import backend_of

        s = self._settings
        options = [self._options(rank, s.cpus) for rank in range(s.ranks)]
        each, backend = threads or max(1, int(s.cpus)), backend_of(self.device)
        return RayRanks(
            target,
            args,
            count=s.ranks,
            threads=each,
            backend=backend,
            options=options,
            launched=launched,
            start_s=self._start_s,
        )

    def _options(self, rank: int, cpus: float) -> dict[str, Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self._bundles[rank]
        place = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=bundle)
        part = 0.5 if bundle < self._lent else 1.0
        return {"num_cpus": cpus, "num_gpus": part * self._settings.devices, "scheduling_strategy": place}

    def roles(self) -> list[tuple[str, str, int, str, str]]:
        """Return name, node, process, devices and state of each rank."""
        devices = describe_gpus(self._settings.devices)
        return [
            (f"rank {rank}", self._nodes[bundle], 0, devices, "placed") for rank, bundle in enumerate(self._bundles)
        ]

    def release(self) -> None:
        """Give the room back."""
        if self._group is not None:
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self._group)
            self._group = None
