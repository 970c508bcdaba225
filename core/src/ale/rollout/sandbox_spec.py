"""The spec of an episode's sandbox: what the run gives to each, and what the task asks for.

A task may ask for less network than the run gives, never for more, and for limits of its own. What the provider cannot
do is refused and ends the run: a task never runs in a weaker sandbox than it asks for.
"""

from __future__ import annotations

from collections.abc import Mapping

from ale.config.capabilities import NETWORKS
from ale.config.episode import SandboxNeeds
from ale.errors import ConfigError
from ale.rollout.no_sandbox import NoSandboxes
from ale.specs.sandbox import NetworkMode, Resources, SandboxProvider, SandboxSpec
from ale.specs.sandbox_protocols import BuildsDockerfiles
from ale.task import Task, as_bytes


async def make_spec(
    task: Task, provider: SandboxProvider, needs: SandboxNeeds, labels: Mapping[str, str]
) -> SandboxSpec:
    """Return the spec as the task and the run ask for it; an image that the task describes is built if it is missing.
    Raises `ConfigError` if the two do not go together. Without sandboxes, what is asked for does not count."""
    labels = {**labels, "task": task.id}
    if isinstance(provider, NoSandboxes):
        return SandboxSpec(labels=labels)
    image = task.image
    if task.build is not None:
        _require(task, provider, "builds", "an image built from a Dockerfile")
        assert isinstance(provider, BuildsDockerfiles), "the capability says so"
        image = await provider.image_from(task.build)
    network, allow = _network(task, provider, needs)
    spec = SandboxSpec(
        image=image,
        resources=_resources(task, provider, needs),
        network=network,
        allow=allow,
        env=dict(task.env),
        user=task.user,
        files={path: as_bytes(content) for path, content in task.files.items()},
        labels=labels,
    )
    return spec if task.workdir is None else spec.model_copy(update={"workdir": task.workdir})


def _require(task: Task, provider: SandboxProvider, capability: str, what: str) -> None:
    if capability not in provider.capabilities:
        raise ConfigError(
            f"sandbox: the task {task.id} asks for {what}, for which a sandbox needs the capability '{capability}', "
            f"and {type(provider).__name__} lacks it; `ale plugins list --kind sandbox` shows which have it."
        )


def _resources(task: Task, provider: SandboxProvider, needs: SandboxNeeds) -> Resources:
    limited = needs.limits_given or "limits" in provider.capabilities
    general = needs.resources if limited else Resources()
    own = {} if task.resources is None else task.resources.model_dump(exclude_none=True)
    if set(own) - {"gpus"}:
        _require(task, provider, "limits", f"limits of its own ({', '.join(own)})")
    if own.get("gpus"):
        _require(task, provider, "gpu", "a GPU")
    return general.model_copy(update=own)


def _network(task: Task, provider: SandboxProvider, needs: SandboxNeeds) -> tuple[NetworkMode, tuple[str, ...]]:
    if task.network is None or task.network == needs.network == "none":
        return needs.network, needs.allow
    if task.network == "none":  # the agent may still need the model
        return ("endpoint-only" if "network_endpoint" in provider.capabilities else "none"), ()
    order = list(NETWORKS)
    beyond = set(task.allow) - set(needs.allow) if needs.network == "allow" else set()
    if order.index(task.network) > order.index(needs.network) or beyond:
        hosts = f" with {sorted(beyond)}" if beyond else ""
        raise ConfigError(
            f"needs.network: the task {task.id} asks for '{task.network}'{hosts}, and the run gives '{needs.network}'. "
            "Give it what it asks for if you trust the task, or leave the task out."
        )
    _require(task, provider, NETWORKS[task.network], f"the network '{task.network}'")
    return task.network, task.allow
