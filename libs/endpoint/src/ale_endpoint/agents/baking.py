"""Installs agents into images, once, before a sandbox starts ("baking").

1. A sandbox is started from the image with a network, and as root if the provider has images. If the recipe's `check`
   succeeds there, the image is used as it is.
2. Otherwise the recipe's `script` runs there, and the file system is saved as a snapshot with the name
   `agent-NAME-HASH`, where the hash is of recipe and image. Later runs, also in other processes, find it by that name.
3. Episodes that need the same snapshot wait for one bake. Another recipe or another image gives another snapshot.

`/opt/ale-agents` is the work folder meanwhile, because snapshots of local sandboxes hold only the writable folders."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import astuple
from urllib.parse import urlsplit

from ale.errors import ConfigError
from ale.specs.sandbox import Resources, Sandbox, SandboxProvider, SandboxSpec
from ale.specs.sandbox_protocols import KeepsSnapshots, Snapshots, lacks
from ale_endpoint.agents.install_recipes import AGENTS, Recipe
from ale_endpoint.agents.package_indexes import package_settings

log = logging.getLogger("ale.rollout.baking")

BAKE_S = 1800.0
CHECK_S = 60.0
OUTPUT_CHARS = 1500
HOME = "/tmp/ale-bake"
"""Home folder of the script, also for its temporary files; it is removed with the caches of package managers."""
BUNDLE = f"{HOME}/ca-certificates.pem"
ROOM = Resources(memory_mib=6144, pids=2048)
MEMORY_DISK_MIB = 4096
"""Disk size of the sandbox if the provider keeps files in memory."""


class Bakery:
    """Makes and finds snapshots with agents. `event` records what was baked in the run's store."""

    def __init__(self, event: Callable[..., None] = lambda kind, **data: None) -> None:
        self._event = event
        self._ready: dict[tuple[int, str], str | None] = {}
        self._locks: dict[tuple[int, str], asyncio.Lock] = {}

    async def with_agent(self, recipe: Recipe, spec: SandboxSpec, provider: SandboxProvider) -> SandboxSpec:
        """Return the spec with an image that has the agent. Raises `ConfigError` if it cannot be installed, and
        `SandboxError`."""
        snapshot = await self.snapshot(recipe, spec.image, provider)
        return spec if snapshot is None else spec.model_copy(update={"from_snapshot": snapshot})

    async def snapshot(self, recipe: Recipe, image: str | None, provider: SandboxProvider) -> str | None:
        """Return the name of a snapshot of the image with the agent; None if the image itself has it."""
        base = image or provider.default_image
        name = snapshot_name(recipe, base)
        key = (id(provider), name)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._ready:
                self._ready[key] = await self._find_or_bake(recipe, name, image, base, provider)
        return self._ready[key]

    async def _find_or_bake(
        self, recipe: Recipe, name: str, image: str | None, base: str | None, provider: SandboxProvider
    ) -> str | None:
        there = await provider.snapshots() if isinstance(provider, KeepsSnapshots) else []
        found = next((each for each in there if each.rpartition(":")[2] == name), None)
        if found is not None:
            self._event("agent_found", agent=recipe.name, snapshot=found)
            return found
        began = time.monotonic()
        async with await provider.start_sandbox(bake_spec(recipe, image, provider)) as box:
            env = {"ALE_AGENT": recipe.place, "HOME": HOME}
            if (await box.exec(recipe.check, timeout_s=CHECK_S, env=env)).exit_code == 0:
                self._event("agent_found", agent=recipe.name, snapshot=None)
                return None
            log.info("Installing %s into %s, once.", recipe.name, base or "the files of sandboxes")
            await bake(recipe, box, base)
            if not isinstance(box, Snapshots):
                raise lacks(box, Snapshots)
            kept = await box.snapshot(name)
        seconds = time.monotonic() - began
        log.info("%s is in %s after %.0f s.", recipe.name, kept, seconds)
        self._event("agent_baked", agent=recipe.name, image=base, snapshot=kept, seconds=round(seconds, 3))
        return kept


async def bake(recipe: Recipe, box: Sandbox, image: str | None) -> None:
    """Run the recipe's script in a sandbox, then remove all it left but the agent. Raises `ConfigError` if it fails."""
    settings, certificates = await asyncio.to_thread(package_settings)
    if certificates is not None:
        await box.upload({BUNDLE: certificates})
        settings = {**settings, **dict.fromkeys(BUNDLE_VARIABLES, BUNDLE)}
    env = {**settings, "ALE_AGENT": recipe.place, "HOME": HOME, "TMPDIR": HOME}
    script = f"mkdir -p {HOME} && umask 022 && set -e\n{recipe.script}"
    done = await box.exec(script, timeout_s=BAKE_S, env=env)
    cleared = await box.exec(f"rm -rf {HOME}", timeout_s=CHECK_S)
    where = f"the image {image}" if image else "the files of sandboxes"
    if done.exit_code != 0 or cleared.exit_code != 0:
        why = f"did not end within {BAKE_S:g} s" if done.timed_out else f"failed with exit code {done.exit_code}"
        raise ConfigError(
            f"The agent {recipe.name} cannot be put into {where}: its recipe {why}. It needs {recipe.base}. The end "
            f"of its output: {done.output.strip()[-OUTPUT_CHARS:] or '(nothing).'}"
        )
    checked = await box.exec(recipe.check, timeout_s=CHECK_S, env={"ALE_AGENT": recipe.place})
    if checked.exit_code != 0:
        raise ConfigError(
            f"The script of the recipe {recipe.name} succeeded in {where}, but its check fails: mend one of "
            f"them. The check's output: {checked.output.strip()[-OUTPUT_CHARS:] or '(nothing).'}"
        )


BUNDLE_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "NPM_CONFIG_CAFILE",
    "GIT_SSL_CAINFO",
)
"""Environment variables in which programs look for the path of a file with certificates."""


def snapshot_name(recipe: Recipe, image: str | None) -> str:
    """Return `agent-NAME-HASH`, which is the same for the same recipe and image in every run."""
    content = hashlib.sha256(json.dumps([astuple(recipe), image]).encode()).hexdigest()[:12]
    return f"agent-{recipe.name.replace('.', '-')}-{content}"


def allowed_hosts(recipe: Recipe) -> tuple[str, ...]:
    """List the hosts that a script may reach under the network policy `allow`: its own, the indexes, the public web."""
    urls = [urlsplit(url) for value in package_settings()[0].values() for url in value.split()]
    indexes = [f"{u.hostname}:{u.port or (80 if u.scheme == 'http' else 443)}" for u in urls if u.hostname]
    return tuple(dict.fromkeys((*recipe.hosts, *indexes, "*:443")))


def bake_spec(recipe: Recipe, image: str | None, provider: SandboxProvider) -> SandboxSpec:
    """Return the spec of the sandbox for the script. Raises `ConfigError` without a network or snapshots."""
    can = provider.capabilities
    if not (issubclass(provider.sandbox_type, Snapshots) and can & {"network_full", "egress_policy"}):
        raise ConfigError(
            f"The agent {recipe.name} must be put into an image, which takes a sandbox provider with snapshots and a "
            "network; use one that has both, such as docker, or use an image that has the agent and set "
            "scaffold.install to false."
        )
    images = "images" in can
    resources = ROOM if images else ROOM.model_copy(update={"disk_mib": MEMORY_DISK_MIB})
    return SandboxSpec(
        id=f"ale-bake-{secrets.token_hex(6)}",  # a sandbox with its own id is never reused by a pool
        image=image,
        user="root" if images else None,
        workdir=AGENTS,
        lifetime_s=BAKE_S + 300,
        network="full" if "network_full" in can else "allow",
        allow=() if "network_full" in can else allowed_hosts(recipe),
        resources=resources if "limits" in can else Resources(),
        labels={"agent": recipe.name},
    )
