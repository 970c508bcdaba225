"""The actor of an engine: it hosts any engine driver and forwards its contract.

An engine made of servers (`make_replica`) is hosted as one of these servers, any other driver as it is; either way the
pool in the run's process checks it, interrupts it, and starts it again as a new actor."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ale.registry.drivers import build_driver
from ale.session.tokenizer import ChatTokenizer, byte_tokenizer
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion
from ale_engines.pool.driver_replica import DriverReplica
from ale_engines.pool.replica import Interrupted, Replica
from ale_ray.actor_calls import answered
from ale_ray.actor_messages import RemoteChannel
from ale_ray.ray_connection import describe_gpus
from ale_ray.run_actor import RunActor


@runtime_checkable
class MadeOfReplicas(Protocol):
    """An engine whose replicas can be had one by one."""

    def make_replica(self, number: int) -> Replica:
        """Make the replica of a number, from 0."""
        ...


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine's actor is made from."""

    name: str
    number: int
    choice: PluginChoice
    context: DriverContext
    """Without a channel."""
    redact: Callable[[str], str]
    folder: Path
    """The run's working folder, to which its paths are relative."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the run must know of an engine."""

    slots: int
    max_context: int
    transports: tuple[str, ...]
    node: str
    pid: int
    capabilities: frozenset[str]
    """Those of its driver on this node."""
    devices: str = ""
    """What Ray has given it, for people: `cpu`, or how many GPUs."""
    frees_memory: bool = True
    """Without a GPU there is nothing that others wait for."""
    part: str = ""
    """Its name among the replicas of an engine that has several kinds of them, such as `vllm 0` of `mixed`."""


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """`Interrupted`, as an answer."""

    message: str
    partial: Generation


class EngineActor(RunActor):
    """Hosts an engine driver, or one server of it."""

    def __init__(self) -> None:
        super().__init__()
        self._replica: Replica | None = None
        self._part = ""
        self._capabilities: frozenset[str] = frozenset()
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._requests: dict[str, GenerateRequest] = {}
        """Those of the running ones."""
        self._aborted: deque[str] = deque(maxlen=1024)
        """Requests that were given up before they arrived: calls overtake each other."""

    async def begin(self, spec: EngineSpec) -> EngineFacts:
        """Build the driver and start it."""
        context = replace(spec.context, channel=RemoteChannel(self._outbox, spec.redact))
        driver = build_driver("engine", spec.choice, context)
        if isinstance(driver, MadeOfReplicas):
            self._replica = driver.make_replica(spec.number)
            own = self._replica.name
            self._part = "" if own == spec.name.rpartition(":")[2] else own
        else:
            assert isinstance(driver, InferenceEngine), "checked when it was loaded"
            self._replica = DriverReplica(driver, spec.name, int(getattr(driver, "slots", 64)))
        await self._stack.enter_async_context(self._replica)
        self._capabilities = frozenset(driver.capabilities)
        return self._facts()

    @answered
    async def load_model(self, folder: Path | None) -> EngineFacts:
        """The tokenizer is read from the folder."""
        tokenizer = byte_tokenizer() if folder is None else await asyncio.to_thread(ChatTokenizer.load, folder)
        await self._engine.load_model(folder, tokenizer)
        return self._facts()

    @answered
    async def load_weights(self, policy: PolicyVersion) -> None:
        await self._engine.load_weights(policy)

    @answered
    async def generate(self, name: str, request: GenerateRequest) -> Generation | BrokenOff | None:
        """`name` is for `abort`, after which this returns None."""
        if name in self._aborted:
            self._aborted.remove(name)
            return None
        task = asyncio.ensure_future(self._engine.generate(request))
        self._running[name], self._requests[name] = task, request
        try:
            return await task
        except Interrupted as error:
            return BrokenOff(str(error), error.partial)
        except asyncio.CancelledError:
            if task.cancelled() and name not in self._running:
                return None
            task.cancel()
            raise
        finally:
            self._running.pop(name, None)
            del self._requests[name]

    async def sampled(self, known: Mapping[str, int]) -> dict[str, Generation]:
        """Return what has been sampled for requests that run, each beyond so many tokens."""
        running = {name: self._requests[name] for name in known if name in self._requests}
        return {name: self._engine.sampled_so_far(request, known[name]) for name, request in running.items()}

    async def abort(self, name: str) -> None:
        """End a request whose caller has gone."""
        task = self._running.pop(name, None)
        if task is None:
            self._aborted.append(name)
        else:
            task.cancel()

    @answered
    async def call(self, method: str) -> None:
        """Call a method of the replica that takes nothing: check, interrupt, pause, resume, sleep or wake."""
        await getattr(self._engine, method)()

    async def state(self) -> tuple[dict[str, float], int]:
        """Return the engine's metrics and how many requests are at it."""
        return (self._engine.metrics() if self._replica else {}), len(self._running)

    @property
    def _engine(self) -> Replica:
        assert self._replica is not None, "start comes first"
        return self._replica

    def _facts(self) -> EngineFacts:
        import ray

        replica = self._engine
        # The trainer is not in this process, and may be on another GPU.
        transports = tuple(name for name in replica.transports if name not in ("memory", "ipc"))
        node, gpus = ray.get_runtime_context().get_node_id(), len(ray.get_gpu_ids())
        return EngineFacts(
            slots=replica.slots,
            max_context=replica.max_context,
            transports=transports,
            node=node,
            pid=os.getpid(),
            capabilities=self._capabilities,
            devices=describe_gpus(gpus),
            frees_memory=not gpus or replica.frees_memory,
            part=self._part,
        )
