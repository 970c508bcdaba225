"""`cluster: {use: ray}`: engines, trainer ranks and rollout workers are Ray actors; the run's process stays the single
controller.

1. Ray does not restart actors, and they end with the run's process, which alone holds their state. The pool of engines
   and `rollout_workers.py` start an actor again that has died. A lost rank ends the training; the run goes on from its
   checkpoint.
2. Weights go by files or between the processes that have them, never through Ray's object store. Engines load them one
   after another (`ale_engines.pool.weight_updates`).
3. Each change of the engines goes to the workers as a numbered table, before new weights count as published.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from ale.config.episode import EpisodeConfig
from ale.errors import ConfigError
from ale.registry.drivers import load_plugin
from ale.rollout.episode import Episodes
from ale.rollout.open_episodes import OpenEpisodes
from ale.specs.cluster import Cluster, EnginePlan
from ale.specs.driver import Channel, Driver, DriverContext
from ale.specs.engine import InferenceEngine, MessageEngine
from ale.specs.events import EXEC_HOOKS, HookSpecs
from ale.specs.ranks import RankPlaces
from ale_engines.pool.member import State
from ale_ray.actor_calls import cancel
from ale_ray.actor_messages import EngineReport, Event, HookCall, LogLine
from ale_ray.control_files import FOLDER, row_of, serve_scale_requests, write_roles
from ale_ray.engine_actor import EngineSpec
from ale_ray.engine_pool import RayEngines
from ale_ray.engine_replica import RayReplica
from ale_ray.rank_placement import RayRankPlaces
from ale_ray.ray_connection import ActorResources, Connection, check_resources, describe_gpus
from ale_ray.remote_episodes import RemoteEpisodes
from ale_ray.rollout_worker import WorkerSpec
from ale_ray.rollout_workers import RemotePool, RolloutWorkers
from ale_ray.settings import RayConfig

MAX_CONCURRENCY = 10_000
"""Calls that an actor has open at once."""
ROLES_S = 0.5
"""How late `roles.json` may be: engines change often, and the disk may be a slow one."""


class RayCluster(Driver, Cluster[EpisodeConfig, OpenEpisodes]):
    """Starts and scales the actors of a run, and ends them with it."""

    api_version = ">=1.0,<1.2"
    Config = RayConfig
    config: RayConfig

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self._connection = Connection(config.address, namespace=context.run_id)
        self._engines: RayEngines | None = None
        self._workers: RolloutWorkers | None = None
        self._places: RayRankPlaces | None = None
        self._folder: Path | None = None
        self._serving: asyncio.Task[None] | None = None
        self._showing: asyncio.Task[None] | None = None
        self._changes = asyncio.Event()
        """Whether `roles.json` is out of date."""
        self._writing, self._scaling = asyncio.Lock(), asyncio.Lock()
        self._next_engine = config.count_of("engine")
        self._lent: list[str] = []
        """The names of the engines on the trainer's devices."""
        self._plan: EnginePlan | None = None
        # A run's channel holds its store; its function that removes secrets is plain data.
        self._redact = getattr(context.channel, "replace_secrets", _unchanged)
        self._portable = replace(context, channel=Channel())

    # --- lifetime

    async def start(self) -> None:
        """Connect to Ray, or start it."""
        c = self.config
        await self._connection.open(self._rooms(0, c.trainer.ranks))
        if self.context.run_dir is not None:
            self._folder = self.context.run_dir / FOLDER
            self._serving = asyncio.create_task(serve_scale_requests(self._folder, self.scale))
            self._showing = asyncio.create_task(self._show_roles())
        if c.trainer.ranks:
            self._places = RayRankPlaces(c.trainer, c.start_s)

    async def close(self) -> None:
        """End all actors, and Ray if it was started for the run."""
        async with AsyncExitStack() as stack:  # each part is closed, also if one before it fails
            stack.push_async_callback(self._connection.close)
            if self._places is not None:
                stack.push_async_callback(asyncio.to_thread, self._places.release)
            for part in (self._engines, self._workers):
                if part is not None:
                    stack.push_async_callback(part.close)
            for task in (self._serving, self._showing):
                await cancel(task)
            await self._write_roles("ended")

    @property
    def ranks(self) -> RankPlaces | None:
        return self._places

    # --- engines

    async def start_engine(self, plan: EnginePlan) -> InferenceEngine:
        choice = plan.choice
        plugin = load_plugin("engine", choice, "engine")
        if issubclass(plugin.cls, MessageEngine):
            raise ConfigError(
                f"cluster: the engine '{choice.use}' answers with messages of another server and needs no node; leave "
                "the section cluster out."
            )
        own = getattr(plugin.config, "replicas", 1)
        if own != 1:
            raise ConfigError(
                f"engine.replicas is {own}: on a cluster each engine is an actor; say cluster.engine.replicas instead."
            )
        places = self._places if plan.beside_trainer else None
        lent = plan.multiplexed
        if lent and (objection := self.config.objection_to_lending(lent)):
            raise ConfigError(objection)
        await asyncio.to_thread(check_resources, self._rooms(lent, 0 if places is None else places.count))
        self._plan = plan
        replicas = [self._replica(number) for number in range(self.config.count_of("engine"))]
        if places is not None:
            await places.reserve(self.config.engine, lent)
            for number, replica in enumerate(replicas[-lent:] if lent else ()):
                replica.options |= places.engine_options(number)
                self._lent.append(replica.name)
        self._engines = RayEngines(replicas, self._note, self.context.channel.event, self._changed)
        await self._engines.start()
        return self._engines

    def _rooms(self, lent: int, ranks: int) -> list[ActorResources]:
        """Return what the run's actors need; `lent` engines lie on the devices of the first ranks."""
        c = self.config
        rooms = [ActorResources("engine", c.engine.cpus, c.engine.devices)] * (c.count_of("engine") - lent)
        for rank in range(ranks):
            rooms.append(
                ActorResources("trainer", c.trainer.cpus + (c.engine.cpus if rank < lent else 0), c.trainer.devices)
            )
        return rooms + [ActorResources("rollout", c.rollout.cpus)] * c.count_of("rollout")

    def _replica(self, number: int) -> RayReplica:
        plan, c = self._plan, self.config.engine
        assert plan is not None, "start_engine comes first"
        name = f"{plan.choice.label} {number}"
        spec = EngineSpec(
            name=name, number=number, choice=plan.choice, context=self._portable, redact=self._redact, folder=Path.cwd()
        )
        return RayReplica(spec, self._options(c.cpus, c.devices), self.config.start_s, self._receive, plan.check)

    def _options(self, cpus: float, devices: int = 0) -> dict[str, Any]:
        """Return the options of an actor that Ray places by itself."""
        return {
            "num_cpus": cpus,
            "num_gpus": devices,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": MAX_CONCURRENCY,
        }

    # --- episodes

    async def place_episodes(self, config: EpisodeConfig, here: OpenEpisodes) -> OpenEpisodes:
        c, workers = self.config.rollout, self.config.count_of("rollout")
        episodes = here.episodes
        if not workers:
            return here
        if episodes.hooks.has_implementation(*EXEC_HOOKS):
            raise ConfigError(
                "observers: one of them has hooks for the commands in sandboxes, which it can only get where the "
                "sandboxes are; take it out, or set cluster.rollout.workers to 0."
            )
        hooks = [
            name for name in vars(HookSpecs) if name.startswith("ale_") and episodes.hooks.has_implementation(name)
        ]
        spec = WorkerSpec(config, self._portable, self._redact, Path.cwd(), hooks)
        options = self._options(c.cpus) | {"scheduling_strategy": "SPREAD"}
        self._workers = RolloutWorkers(
            spec,
            options,
            slots=2 * config.rollout.concurrency,  # as many episodes are scored as have an agent that acts
            start_s=self.config.start_s,
            receive=self._receive,
            note=self._note,
            event=self.context.channel.event,
            changed=self._changed,
        )
        assert self._engines is not None, "the engine comes first"
        self._engines.workers = self._workers
        await self._engines.send_table()
        await self._workers.add(workers)
        given = {name: getattr(episodes, name) for name in Episodes.__dataclass_fields__}
        remote = {name: RemotePool(self._workers, name) for name in here.pools}
        return OpenEpisodes(RemoteEpisodes(**given, workers=self._workers), remote)

    # --- scale and status

    async def scale(self, role: str, count: int) -> str:
        """Go on with so many engines or rollout workers; returns a sentence. Raises `AleError`."""
        async with self._scaling:
            change = self._scale_engines if role == "engine" else self._scale_workers
            names = await change(count)
            self.config.scale(role, len(names))
            await self._write_roles()
        what = ("engine" if role == "engine" else "rollout worker") + ("s" if len(names) > 1 else "")
        return f"The run has {len(names)} {what} now: {', '.join(names)}."

    async def _scale_engines(self, count: int) -> list[str]:
        engines = self._engines
        if engines is None or count < 1:
            raise ConfigError("A run has at least one engine.")
        if count < len(self._lent):
            raise ConfigError(
                f"rl.multiplex is {len(self._lent)}: so many engines lie on the trainer's devices, and stay there. For "
                "fewer, stop the run, and go on with a smaller rl.multiplex (ale run --resume)."
            )
        for status in engines.replica_statuses():
            if status.state is State.FAILED:
                await engines.leave(status.name)
        while len(engines.replicas) < count:
            room = ActorResources("engine", self.config.engine.cpus, self.config.engine.devices)
            await asyncio.to_thread(check_resources, [room])
            replica, self._next_engine = self._replica(self._next_engine), self._next_engine + 1
            try:
                await replica.start()
                await engines.join(replica)
            except BaseException:
                await replica.close()
                raise
        while len(engines.replicas) > count:
            own = [replica.name for replica in engines.replicas if replica.name not in self._lent]
            left = await engines.leave(own[-1])
            await left.close()
        return [replica.name for replica in engines.replicas]

    async def _scale_workers(self, count: int) -> list[str]:
        workers = self._workers
        if workers is None or count < 1:
            raise ConfigError("cluster.rollout.workers is 0 for this run: its episodes are made where it was started.")
        while any(worker.state == "failed" for worker in workers):
            await workers.remove()
        if len(workers) < count:
            await asyncio.to_thread(check_resources, [ActorResources("rollout", self.config.rollout.cpus)])
            await workers.add(count - len(workers))
        while len(workers) > count:
            await workers.remove()
        return [worker.name for worker in workers]

    def _changed(self) -> None:
        """Have the actors of the run written soon."""
        self._changes.set()

    async def _show_roles(self) -> None:
        """Write the actors of the run for ever, soon after each change."""
        while True:
            await self._changes.wait()
            await asyncio.sleep(ROLES_S)
            await self._write_roles()

    async def _write_roles(self, state: str = "running") -> None:
        """Write the actors of the run for `ale cluster status`, in a thread: Ray and the disk may be slow."""
        if self._folder is None or not self._connection.opened:
            return
        async with self._writing:
            self._changes.clear()
            writing = asyncio.ensure_future(asyncio.to_thread(write_roles, self._folder, state, self._list_actors()))
            try:
                await asyncio.shield(writing)
            finally:  # a thread goes on when it is cancelled, and must not write after the next one
                await asyncio.wait([writing])

    def _list_actors(self) -> list[dict[str, Any]]:
        rows = []
        if self._engines is not None:
            facts = {each.name: each.facts for each in self._engines.replicas if isinstance(each, RayReplica)}
            for status in self._engines.replica_statuses():
                at = facts[status.name]
                row = row_of(
                    role="engine",
                    name=status.name,
                    node=at.node,
                    pid=at.pid,
                    devices=at.devices,
                    state=status.state,
                    version=status.version,
                )
                rows.append(row | ({"part": at.part} if at.part else {}))
        if self._places is not None:
            for name, node, pid, devices, state_of_rank in self._places.roles():
                rows.append(
                    row_of(
                        role="trainer",
                        name=name,
                        node=node,
                        pid=pid,
                        devices=devices,
                        state=state_of_rank,
                        version=None,
                    )
                )
        for worker in self._workers or ():
            rows.append(
                row_of(
                    role="rollout",
                    name=worker.name,
                    node=worker.node,
                    pid=worker.pid,
                    devices=describe_gpus(0),
                    state=worker.state,
                    version=None,
                )
            )
        return rows

    def _note(self, text: str) -> None:
        self.context.channel.event("note", text=text)

    def _receive(self, message: Any) -> None:
        """Take a message of an actor."""
        match message:
            case Event(kind, data):
                self.context.channel.event(kind, **data)
            case HookCall(hook, arguments):
                self.context.channel.notify(hook, **arguments)
            case LogLine(logger, level, text):
                logging.getLogger(logger).log(level, "%s", text)
            case EngineReport(engine, works):
                if self._engines is not None:
                    (self._engines.finished if works else self._engines.suspect)(engine)


def _unchanged(text: str) -> str:
    return text
