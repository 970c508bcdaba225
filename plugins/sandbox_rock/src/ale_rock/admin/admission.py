"""Whether a sandbox may be started: the user's quota, the bound of the queue, and whether any worker could run it.

What a worker must be able to do is a set of *abilities*: capabilities of its provider (`ale.specs.kinds`) and
protocols of its sandboxes (`ale.specs.sandbox_protocols`), by name. A client of ROCK always names an image and limits.
Its sandbox goes to a worker that has none of these (`start_requests.request_for_worker`) only while the service has no
worker that has them.
"""

from __future__ import annotations

from dataclasses import replace

from ale.config.capabilities import NETWORKS
from ale.specs.kinds import CAPABILITIES
from ale.specs.sandbox_protocols import SANDBOX_PROTOCOLS, Snapshots, meaning
from ale_rock.admin.fleet import Fleet
from ale_rock.admin.kept_files import KeptFiles
from ale_rock.admin.queue import Queue
from ale_rock.admin.record import Record
from ale_rock.admin.settings import Settings
from ale_rock.schemas import SERVICE_ERROR, CreateSandbox, RockError

GIB = 1 << 30
SNAPSHOTS = Snapshots.__name__
_PROTOCOLS = {protocol.__name__: meaning(protocol) for protocol in SANDBOX_PROTOCOLS}


class Admission:
    """Checks starts before they enter the queue."""

    def __init__(self, settings: Settings, fleet: Fleet, queue: Queue, kept: KeptFiles) -> None:
        self._settings, self._fleet, self._queue, self._kept = settings, fleet, queue, kept

    def check(self, record: Record) -> None:
        """Note in a record what its worker must be able to do. Raises `RockError` if it may not be started."""
        fleet, settings, user = self._fleet, self._settings, record.user or ""
        quota = settings.user_quotas.get(user, settings.sandboxes_per_user)
        if quota is not None and fleet.per_user[user] >= quota:
            name = repr(record.user) if record.user else "without a name"
            raise RockError(
                f"The user {name} has {fleet.per_user[user]} live sandboxes and may have {quota}; stop one first."
            )
        if len(self._queue) >= settings.queue_limit:
            raise RockError(
                f"The queue is full: {len(self._queue)} sandboxes wait, and {fleet.counts['running']} run. Try again "
                "in a minute, or add workers.",
                SERVICE_ERROR,
            )
        self._note_abilities(record)
        record.unjudged = not fleet.workers
        if fleet.workers and not fleet.choice.could_ever(record.need):
            raise RockError(self.unmet(record))
        if record.source is not None and not fleet.choice.holders(record.source):
            where = f"the worker {record.worker}, which is not there" if record.worker else "a worker that is not there"
            raise RockError(f"The files from which the sandbox {record.id} starts are on {where}.", SERVICE_ERROR)

    def judge_waiting(self) -> list[Record]:
        """Judge what was asked for while no worker was there; returns those that no worker could run."""
        unjudged = [record for record in self._queue.waiting() if record.unjudged]
        for record in unjudged:
            record.unjudged = False
            self._note_abilities(record)
        return [record for record in unjudged if not self._fleet.choice.could_ever(record.need)]

    def _note_abilities(self, record: Record) -> None:
        request, choice = record.create_request, self._fleet.choice
        assert request is not None, "a sandbox that is to be started has its request"
        must = required_abilities(request, record.for_rock)
        wishes = {
            each
            for each in preferred_abilities(request, record.for_rock, self._kept.wanted(record))
            if choice.has(each)
        }
        record.need = replace(record.need, abilities=must | wishes)
        if wishes and not choice.could_ever(record.need):
            record.need = replace(record.need, abilities=must)

    def unmet(self, record: Record) -> str:
        """Say what no worker can give a sandbox."""
        need, workers = record.need, self._fleet.workers.values()
        if not any(worker.offers(need) for worker in workers):
            lacking = frozenset(each for each in need.abilities if not self._fleet.choice.has(each)) or need.abilities
            return f"No worker of this service has {describe_abilities(lacking)}; start one that has, or ask for less."
        return (
            f"No worker is large enough for {need.cpus:g} CPUs, {need.memory_bytes / GIB:.6g} GiB of memory, "
            f"{need.disk_bytes / GIB:.6g} GiB of disk and {need.gpus} GPUs, even when it is empty; ask for less."
        )


def required_abilities(request: CreateSandbox, for_rock: bool) -> frozenset[str]:
    """Return what a worker must be able to do."""
    spec, limits = request.spec, request.spec.resources.model_dump(exclude={"gpus"}, exclude_none=True)
    asked = {
        NETWORKS[spec.network]: True,
        "gpu": bool(spec.resources.gpus),
        "images": spec.image is not None and not for_rock,
        "limits": bool(limits) and not for_rock,
        SNAPSHOTS: request.keeps_files or spec.from_snapshot is not None,
    }
    return frozenset(name for name, is_asked in asked.items() if is_asked)


def preferred_abilities(request: CreateSandbox, for_rock: bool, keeps_files: bool) -> frozenset[str]:
    """Return what a worker must be able to do if any worker is."""
    of_rock = {"limits", *({"images"} if request.spec.image is not None else ())} if for_rock else set()
    return frozenset({*of_rock, *({SNAPSHOTS} if keeps_files else ())})


def describe_abilities(names: frozenset[str]) -> str:
    """Say what abilities are."""
    known = {**CAPABILITIES["sandbox"], **_PROTOCOLS}
    return " and ".join(f"'{name}' ({known.get(name, 'unknown')})" for name in sorted(names))
