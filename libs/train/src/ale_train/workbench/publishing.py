"""Hands new weights from the trainer to the engine."""

from __future__ import annotations

import asyncio
import shutil

from ale.errors import PluginError
from ale.specs.engine import PolicyVersion, agree_on_transport
from ale_train.workbench.workbench import Workbench

WEIGHTS = "weights"
"""The folder inside the run folder for policy versions that are handed over as files."""


async def publish(bench: Workbench) -> PolicyVersion:
    """Publish the trainer's weights to the engine, by the first transport that both name.

    The trainer writes the files for that to `weights/<version>` of the run folder. The newest version stays, so that a
    restarted engine can load it; older ones are removed once the engine has the newest. Raises `PluginError` if the two
    have no transport in common."""
    transport = agree_on_transport(bench.backend.transports, bench.engine.transports)
    if transport is None:
        raise PluginError("engine: it has no transport of weights in common with the trainer on this machine.")
    folder = bench.folder / WEIGHTS
    policy = await bench.backend.publish(transport, folder)
    await bench.engine.load_weights(policy)
    for old in folder.iterdir() if folder.exists() else ():
        if old.name != str(policy.version):
            await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)
    return policy
