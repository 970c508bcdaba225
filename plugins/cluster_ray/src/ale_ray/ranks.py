"""Trainer ranks as Ray actors: `RayRanks` is what `ale_torch.ranks.Ranks` is, over the nodes of a cluster.

1. Each rank is an actor, placed by the options that the caller gives. Rank 0's process holds the store by which all of
   them find each other, and torch connects them; Ray carries only calls and answers.
2. The arguments of a call are pickled and put into Ray's object store once, from where each node fetches them once.
3. An actor is never restarted, as what it held would be lost. Whatever Ray says of one that does not answer (it died,
   it or its node cannot be reached), the rank has ended, and so all are ended.
4. A call may take as long as it likes. While it goes on, each rank is asked every few seconds whether its process
   moves; one that does not answer for a minute counts as ended, too.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ale.errors import TrainerError
from ale_ray import actor_lifecycle as actors
from ale_ray.actor_calls import COLORS
from ale_ray.rank_actor import PING, RankActor, RankAddress
from ale_torch.ranks import RankGroup, RankPlan
from ale_torch.ranks.rank import Answer

START_S = 600.0
END_S = 10.0
LOOK_S = 5.0
"""Seconds between two looks whether the ranks live."""
SHOWN_CHARACTERS = 2000


class RayRanks(RankGroup):
    """Actors that each hold an object made by `target(world, *args)`; `target` is `module:Class`.

    `threads` are the CPU threads of each; `backend` is torch's name of what connects them
    (`ale_torch.ranks.backend_of`).
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
        actor_class: Any = ray.remote(concurrency_groups={PING: 1})(RankActor)
        fixed = {"max_restarts": 0, "max_task_retries": 0}
        self._addresses: list[RankAddress] = []
        self._answers: dict[int, Any] = {}
        """The references of answers that have not been taken yet, by rank."""
        self._pings: dict[int, tuple[Any, float]] = {}
        """The last ping of each rank in this call, and when it was sent."""
        self._silent_s = start_s
        """How long a rank may be silent. It does not answer while it loads a large library."""
        self._actors: list[Any] = [
            actor_class.options(**{**options[rank], **fixed}).remote(rank, threads, os.getcwd())
            for rank in range(count)
        ]
        try:
            if launched is not None:
                launched(self)
            self._ask("find_place")
            self._addresses = self._take_answers("start", start_s)
            first = self._addresses[0]
            one_node = all(each.address == first.address for each in self._addresses)
            plan = RankPlan(
                path=sys.path,
                target=target,
                size=count,
                port=first.port,
                threads=threads,
                backend=backend,
                host=first.address,
                one_node=one_node,
            )
            self._ask("prepare", plan)
            self._take_answers("start", start_s)
            self.call("__init__", *args)
            self._silent_s = actors.SILENT_S
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
        self._pings.clear()

    def _wait(self, ranks: Collection[int], timeout_s: float | None) -> dict[int, Answer]:
        import ray

        waiting = {self._answers[rank]: rank for rank in ranks}
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, until - time.monotonic())
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=min(LOOK_S, left_s))
            if ready:
                return {waiting[reference]: _receive(self._answers.pop(waiting[reference])) for reference in ready}
            if silent := self._find_silent(ranks):
                error = TrainerError(f"it did not answer for {self._silent_s:g} s, and was ended.")
                return dict.fromkeys(silent, ("ended", error))
            if left_s <= LOOK_S:
                return {}

    def _find_silent(self, ranks: Collection[int]) -> list[int]:
        """Return which of these ranks have stopped for good, and ask those that have answered again."""
        import ray

        silent = []
        for rank in ranks if self._addresses else ():  # before, they may wait for room
            ping, sent = self._pings.get(rank, (None, 0.0))
            over = ping is not None and time.monotonic() - sent > self._silent_s
            # Once more, if it is over: this process may have stood still itself.
            if ping is None or ray.wait([ping], timeout=LOOK_S if over else 0)[0]:
                ping = self._actors[rank].ping.options(concurrency_group=PING).remote()
                self._pings[rank] = ping, time.monotonic()
            elif over:
                silent.append(rank)
        return silent

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
        if not self._addresses:
            return super()._name(rank)
        address = self._addresses[rank]
        return f"{super()._name(rank)} (process {address.pid} on the node {address.address})"


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
