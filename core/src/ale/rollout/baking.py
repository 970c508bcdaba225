"""Agents in images: before a sandbox starts, what its scaffold's agent needs is put into its image, once.

1. A sandbox is started from the image, as root where it has images, with a network. Where the recipe's `check` succeeds the
   image is used as it is.
2. Else the recipe's `script` runs there, and the file system is kept as a snapshot whose name is made of the recipe and the
   image: `agent-NAME-HASH`. Later runs, also in other processes, find it by that name.
3. Episodes that need the same wait for one. Another recipe, or another image, is another snapshot.

`/opt/ale-agents` is the work folder meanwhile, so that a local sandbox, whose snapshots hold what can be written to, keeps it too.
"""

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
from ale.package_settings import package_settings
from ale.specs.sandbox import Resources, Sandbox, SandboxProvider, SandboxSpec
from ale.specs.scaffold import AGENTS, Recipe

log = logging.getLogger("ale.rollout.baking")

BAKE_S = 1800.0
CHECK_S = 60.0
SAID_CHARS = 1500
HOME = "/tmp/ale-bake"
"""Home folder of the script, for temporary files too: caches and settings of package managers go there, and from there nowhere."""
BUNDLE = f"{HOME}/ca-certificates.pem"
ROOM = Resources(memory_mib=6144, pids=2048)
MEMORY_DISK_MIB = 4096
"""For a provider whose sandboxes have their files in memory."""


class Bakery:
    """Snapshots with agents in them. `event` puts what was baked into the run's store."""

    def __init__(self, event: Callable[..., None] = lambda kind, **data: None) -> None:
        self._event = event
        self._ready: dict[tuple[int, str], str | None] = {}
        self._locks: dict[tuple[int, str], asyncio.Lock] = {}

    async def with_agent(
        self, recipe: Recipe, spec: SandboxSpec, provider: SandboxProvider, limits_given: bool = False
    ) -> SandboxSpec:
        """The spec, from an image that has the agent. Raises `ConfigError` where it cannot be put there, `SandboxError`."""
        snapshot = await self.snapshot(recipe, spec.image, provider)
        if snapshot is None:
            return spec
        changed: dict[str, object] = {"from_snapshot": snapshot}
        if "images" in provider.capabilities and not limits_given:
            changed["resources"] = spec.resources.model_copy(update={"disk_mib": None})
        return spec.model_copy(update=changed)

    async def snapshot(self, recipe: Recipe, image: str | None, provider: SandboxProvider) -> str | None:
        """The name of a snapshot of this image with the agent in it; None where the image itself has it."""
        base = image or getattr(provider.config, "image", None)
        name = snapshot_name(recipe, base)
        key = (id(provider), name)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._ready:
                self._ready[key] = await self._found_or_baked(recipe, name, image, base, provider)
        return self._ready[key]

    async def _found_or_baked(
        self, recipe: Recipe, name: str, image: str | None, base: str | None, provider: SandboxProvider
    ) -> str | None:
        found = next((each for each in await provider.snapshots() if each.rpartition(":")[2] == name), None)
        if found is not None:
            self._event("agent_found", agent=recipe.name, snapshot=found)
            return found
        began = time.monotonic()
        async with await provider.start_sandbox(bake_spec(recipe, image, provider)) as box:
            env = {"ALE_AGENT": recipe.place, "HOME": HOME}
            if (await box.exec(recipe.check, timeout_s=CHECK_S, env=env)).exit_code == 0:
                self._event("agent_found", agent=recipe.name, snapshot=None)
                return None
            log.info("Putting %s into %s, once.", recipe.name, base or "the files of sandboxes")
            await bake(recipe, box, base)
            kept = await box.snapshot(name)
        seconds = time.monotonic() - began
        log.info("%s is in %s after %.0f s.", recipe.name, kept, seconds)
        self._event("agent_baked", agent=recipe.name, image=base, snapshot=kept, seconds=round(seconds, 3))
        return kept


async def bake(recipe: Recipe, box: Sandbox, image: str | None) -> None:
    """Run the recipe's script in a sandbox, and leave nothing there but the agent. Raises `ConfigError` where it fails."""
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
            f"The agent {recipe.name} cannot be put into {where}: its recipe {why}. It asks for {recipe.base}. The end of what "
            f"it said: {done.output.strip()[-SAID_CHARS:] or 'nothing.'}"
        )
    checked = await box.exec(recipe.check, timeout_s=CHECK_S, env={"ALE_AGENT": recipe.place})
    if checked.exit_code != 0:
        raise ConfigError(
            f"The recipe of {recipe.name} ran to its end in {where}, and its check fails all the same: mend one of them. "
            f"The check said: {checked.output.strip()[-SAID_CHARS:] or 'nothing.'}"
        )


BUNDLE_VARIABLES = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE",
    "GIT_SSL_CAINFO",
)  # fmt: skip
"""Where programs look for the name of a file with certificates."""


def snapshot_name(recipe: Recipe, image: str | None) -> str:
    """`agent-NAME-HASH`: the same recipe and image have the same name, in every run on this machine."""
    content = hashlib.sha256(json.dumps([astuple(recipe), image]).encode()).hexdigest()[:12]
    return f"agent-{recipe.name.replace('.', '-')}-{content}"


def way_out(recipe: Recipe) -> tuple[str, ...]:
    """What a script may reach where hosts are named: its own, this machine's indexes, the public web."""
    urls = [urlsplit(url) for value in package_settings()[0].values() for url in value.split()]
    indexes = [f"{u.hostname}:{u.port or (80 if u.scheme == 'http' else 443)}" for u in urls if u.hostname]
    return tuple(dict.fromkeys((*recipe.hosts, *indexes, "*:443")))


def bake_spec(recipe: Recipe, image: str | None, provider: SandboxProvider) -> SandboxSpec:
    """What the script runs in. Raises `ConfigError` where the provider has no network for it, or no snapshots."""
    can = provider.capabilities
    if not ("snapshot" in can and can & {"network_full", "egress_policy"}):
        raise ConfigError(
            f"The agent {recipe.name} must be put into an image, which takes a sandbox provider with snapshots and a network; "
            "use one that has them, such as docker, or use an image that has the agent and set scaffold.install to false."
        )
    images = "images" in can
    resources = ROOM if images else ROOM.model_copy(update={"disk_mib": MEMORY_DISK_MIB})
    return SandboxSpec(
        id=f"ale-bake-{secrets.token_hex(6)}",  # with a name of its own no pool hands it to somebody else
        image=image, user="root" if images else None, workdir=AGENTS, lifetime_s=BAKE_S + 300,
        network="full" if "network_full" in can else "allow", allow=() if "network_full" in can else way_out(recipe),
        resources=resources if "limits" in can else Resources(), labels={"agent": recipe.name},
    )  # fmt: skip
