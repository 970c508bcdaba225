"""Trainer ranks as Ray actors: `RayRanks` is what `ale_ranks.Ranks` is, over the nodes of a cluster.

1. Each rank is an actor, placed by the options that the caller gives. Rank 0's process holds the store by which all of
   them find each other, and torch connects them; Ray carries only calls and answers.
2. The arguments of a call are pickled and put into Ray's object store once, from where each node fetches them once.
3. An actor is never restarted, as what it held would be lost. Whatever Ray says of one that does not answer (it died,
   it or its node cannot be reached), the rank has ended, and so all are ended.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ale.errors import TrainerError
from ale_ranks import RankGroup, RankPlan
from ale_ranks.rank import Answer
from ale_ray.calls import COLORS
from ale_ray.rank_actor import Place, RankActor

START_S = 600.0
END_S = 10.0
SHOWN_CHARACTERS = 2000


class RayRanks(RankGroup):
    """Actors that each hold an object made by `target(world, *args)`; `target` is `module:Class`.

    `threads` are the CPU threads of each; `backend` is torch's name of what connects them (`ale_ranks.backend_of`).
    `options` are those of each rank's actor: where it is, its CPUs and GPUs, its name.
    """

    def __init__(
        self,
        target: str,
        args: tuple[Any, ...] = (),
        *,
        count: int,
        threads: int,
        backend: str,
        options: Sequence[Mapping[str, Any]],
        launched: Callable[[RayRanks], None] | None = None,
        start_s: float = START_S,
    ) -> None:
        """Start them. Raises what the constructor of the object raises, and `RanksLost` if an actor does not run within
        `start_s`.

        `launched` is called before the actors run, so that another thread can `kill` what does not get ready."""
        import ray

        super().__init__(count)
        actor_class: Any = ray.remote(RankActor)
        fixed = {"max_restarts": 0, "max_task_retries": 0}
        self._places: list[Place] = []
        self._answers: dict[int, Any] = {}
        """The references of answers that have not been taken yet, by rank."""
        self._actors: list[Any] = [
            actor_class.options(**{**options[rank], **fixed}).remote(rank, threads, os.getcwd())
            for rank in range(count)
        ]
        try:
            if launched is not None:
                launched(self)
            self._ask("find_place")
            self._places = self._take_answers("start", start_s)
            first = self._places[0]
            one_node = all(place.address == first.address for place in self._places)
            plan = RankPlan(sys.path, target, count, first.port, threads, backend, first.address, one_node)
            self._ask("prepare", plan)
            self._take_answers("start", start_s)
            self.call("__init__", *args)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Have the ranks close their objects, and end them; by force if that takes long."""
        import ray

        if self._failure is None and ray.is_initialized():
            left = [actor.leave.remote() for actor in self._actors]
            ray.wait(left, num_returns=len(left), timeout=END_S)
        super().close()

    def _send(self, request: bytes) -> None:
        import ray

        self._ask("answer", ray.put(request))

    def _ask(self, method: str, *args: Any) -> None:
        self._answers = {rank: getattr(actor, method).remote(*args) for rank, actor in enumerate(self._actors)}

    def _wait(self, ranks: Collection[int], timeout_s: float | None) -> dict[int, Answer]:
        import ray

        waiting = {self._answers[rank]: rank for rank in ranks}
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=timeout_s)
        return {waiting[reference]: _receive(self._answers.pop(waiting[reference])) for reference in ready}

    def _kill(self) -> None:
        import ray
        from ray.exceptions import RayError

        if not ray.is_initialized():  # they have ended with their owner
            return
        for actor in self._actors:
            with contextlib.suppress(RayError):
                ray.kill(actor, no_restart=True)

    def _end(self) -> None:
        import ray

        self._kill()
        self._answers.clear()
        if ray.is_initialized():  # a call of a dead actor fails at once, when Ray has given its name and place free
            ended = [actor.leave.remote() for actor in self._actors]
            ray.wait(ended, num_returns=len(ended), timeout=END_S)

    def _name(self, rank: int) -> str:
        if not self._places:
            return super()._name(rank)
        place = self._places[rank]
        return f"{super()._name(rank)} (process {place.pid} on the node {place.address})"


def _receive(reference: Any) -> Answer:
    """Return a rank's answer; where none will come, an error."""
    import ray
    from ray.exceptions import RayError

    try:
        answer: Answer = pickle.loads(ray.get(reference))
        return answer
    except RayError as error:
        return "ended", TrainerError(f"its process has ended. Ray says: {_shown(error)}")


def _shown(error: Exception) -> str:
    """Return what Ray says of an actor, without colours and the lines that name it."""
    lines = [line.rstrip() for line in COLORS.sub("", str(error)).splitlines() if not line.startswith("\t")]
    return "\n".join(lines)[-SHOWN_CHARACTERS:]
