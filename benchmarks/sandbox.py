"""Measures sandboxes (start, command, many at once) and compares them with the engines' own ways to do the
same.

Each round runs both sides one after the other, so that its ratio is taken under the same conditions. Engines that do
not answer are left out. The comparison with Docker needs docker-py: `pip install docker`.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ale.config.pool import PoolConfig
from ale.errors import AleError
from ale.registry.drivers import build_driver
from ale.rollout.sandbox_pool.pool import SandboxPool
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import Resources, Sandbox, SandboxSpec

ROUNDS, STARTS, AT_ONCE = 40, 12, 100
IMAGE = "ale-base:1"
Side = Callable[[], Awaitable[float]]


async def timed(call: Awaitable[Any]) -> float:
    """Measure the milliseconds of a call."""
    began = time.perf_counter()
    await call
    return (time.perf_counter() - began) * 1e3


async def blocking(call: Callable[[], Any]) -> float:
    """Measure the milliseconds of a blocking call; nothing else runs meanwhile."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


async def row(what: str, ours: Side, theirs: Side | None, rounds: int) -> None:
    """Print medians of both sides, and the median ratio of the rounds with its quartiles."""
    pairs = [(await ours(), await theirs() if theirs else float("nan")) for _ in range(rounds)]
    mine, other = (sorted(pair[i] for pair in pairs) for i in (0, 1))
    line = f"{what:<44} {statistics.median(mine):>8.2f} {mine[0]:>8.2f} {mine[-1]:>8.2f}"
    if theirs is not None:
        low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
        line += f" {statistics.median(other):>9.2f}   {middle:>6.3f} ({low:.3f}-{high:.3f})"
    print(line, flush=True)


async def measure_many(provider: Any) -> None:
    """Start a hundred sandboxes at once; measure starts per second and memory."""
    began = time.perf_counter()
    slots = asyncio.Semaphore(8)

    async def start() -> Sandbox:
        async with slots:
            return await provider.start_sandbox(SandboxSpec(resources=Resources(disk_mib=8)))

    boxes = await asyncio.gather(*(start() for _ in range(AT_ONCE)))
    per_s = AT_ONCE / (time.perf_counter() - began)
    ran = await asyncio.gather(*(box.exec("echo $((6 * 7))") for box in boxes))
    assert all(done.stdout == b"42\n" for done in ran)
    sizes = [s.memory_bytes for s in await asyncio.gather(*(box.stats() for box in boxes)) if s.memory_bytes]
    each = f"{statistics.mean(sizes) / 2**20:.1f} MiB each by their control group" if sizes else "memory unknown"
    print(f"{'local: ' + str(AT_ONCE) + ' running at once':<44} {per_s:.0f} starts a second, {each}")
    await asyncio.gather(*(box.stop() for box in boxes))


async def measure(name: str) -> None:
    """Print the rows of one provider."""
    provider = build_driver("sandbox", PluginChoice(use=name), DriverContext())
    try:
        await provider.__aenter__()
    except AleError as error:
        print(f"{name}: left out: {error}")
        return
    try:
        await rows(name, provider)
    finally:
        await provider.close()


async def rows(name: str, provider: Any) -> None:
    """Measure a provider that has started, and print its rows."""
    async with await provider.start_sandbox(SandboxSpec()) as box:

        async def start() -> float:
            began = time.perf_counter()
            async with await provider.start_sandbox(SandboxSpec()) as fresh:
                await fresh.exec("true")
                return (time.perf_counter() - began) * 1e3

        exec_theirs, start_theirs, done = other_side(name, box)
        await row(f"{name}: exec of `true`", lambda: timed(box.exec("true")), exec_theirs, ROUNDS)
        await start()
        await row(f"{name}: start to the end of `true`", start, start_theirs, STARTS if start_theirs else ROUNDS)
        if name == "local":
            await row(f"{name}: fork of a snapshot", await measure_fork(provider, box), None, ROUNDS)
            await measure_many(provider)
        done()
    await row(f"{name}: reset after a command that wrote", *measure_reset(provider), ROUNDS)
    for what, disk_mib in (("in memory", 64), ("in a layer", None)) if name != "local" else (("in memory", 64),):
        await warm_rows(f"{name}: warm start to the end of `true`, {what}", provider, Resources(disk_mib=disk_mib))


async def measure_fork(provider: Any, box: Sandbox) -> Side:
    """Return the measurement of a fork: from a snapshot to a sandbox started from it."""
    await box.exec("head -c 50000000 /dev/zero > large")
    name = await box.snapshot()

    async def fork() -> float:
        began = time.perf_counter()
        async with await provider.start_sandbox(SandboxSpec(from_snapshot=name)):
            return (time.perf_counter() - began) * 1e3

    await fork()
    return fork


async def warm_rows(what: str, provider: Any, resources: Resources) -> None:
    """Measure a lease from a pool with warm sandboxes, with its own files and environment, as for an episode."""
    async with SandboxPool(provider, PoolConfig(max_uses=10 * ROUNDS)) as pool:

        async def lease() -> float:
            for _ in range(10_000):
                if pool.metrics()["resetting"]:
                    await asyncio.sleep(0.001)
            began = time.perf_counter()
            spec = SandboxSpec(resources=resources, env={"EPISODE": "1"}, files={"task": b"x" * 1000})
            async with await pool.start_sandbox(spec) as box:
                await box.exec("true")
                return (time.perf_counter() - began) * 1e3

        await lease()
        await row(what, lease, None, ROUNDS)
        assert pool.metrics()["cold_starts"] == 1, "all but the first were warm"


def measure_reset(provider: Any) -> tuple[Side, None]:
    """Return the measurement of a reset with processes to end and files to remove."""
    boxes: list[Sandbox] = []
    spec = SandboxSpec(resources=Resources(disk_mib=64))

    async def reset() -> float:
        if not boxes:
            boxes.append(await provider.start_sandbox(spec))
        await boxes[0].exec("mkdir -p a/b; echo 1 > a/b/c; echo 2 > /tmp/d; (setsid sleep 100 >/dev/null 2>&1 &)")
        return await timed(boxes[0].reset(spec))

    return reset, None


def other_side(name: str, box: Sandbox) -> tuple[Side | None, Side | None, Callable[[], None]]:
    """Return the engine's own exec and start, and a function that closes its client; None without such a client."""
    try:
        return THEIRS[name](box)
    except KeyError:
        pass
    except ImportError as error:
        print(f"{name}: only this side: {error}; `pip install docker` brings the other one")
    return None, None, lambda: None


def docker_py(box: Sandbox) -> tuple[Side, Side, Callable[[], None]]:
    """docker-py's `exec_run` in the same container; `docker run` of `true` from the command line."""
    import docker

    client = docker.from_env()
    container = client.containers.get(box.id)
    command = ["docker", "run", "--rm", "--network=none", IMAGE, "true"]
    return (
        lambda: blocking(lambda: container.exec_run("true")),
        lambda: blocking(lambda: subprocess.run(command, check=True, capture_output=True)),
        client.close,
    )


def podman_py(box: Sandbox) -> tuple[Side, Side, Callable[[], None]]:
    """podman-py's `exec_run` in the same container; create, start and wait through its API."""
    import podman

    client = podman.PodmanClient(base_url="unix:///run/podman/podman.sock")
    container = client.containers.get(box.id)

    def run() -> None:
        fresh = client.containers.create(IMAGE, ["true"], network_mode="none", remove=True)
        fresh.start()
        fresh.wait()

    return lambda: blocking(lambda: container.exec_run("true")), lambda: blocking(run), client.close


THEIRS: dict[str, Callable[[Sandbox], tuple[Side, Side, Callable[[], None]]]] = {
    "docker": docker_py,
    "podman": podman_py,
}


async def main() -> None:
    """Print the table."""
    print(f"{'milliseconds':<44} {'median':>8} {'min':>8} {'max':>8} {'theirs':>9}   ratio (quartiles)")
    for name in ("local", "docker", "podman"):
        await measure(name)


if __name__ == "__main__":
    assert Path("/proc").is_dir(), "sandboxes need Linux"
    asyncio.run(main())
