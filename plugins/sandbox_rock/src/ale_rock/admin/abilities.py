"""What a worker must be able to do for a sandbox, by name: capabilities of its provider (`ale.specs.kinds`), and
protocols of its sandboxes (`ale.specs.sandbox_protocols`).

A client of ROCK always names an image and limits, and may be given a worker that has none of these (`orders`); but not
while the service has workers that do.
"""

from __future__ import annotations

from ale.config.capabilities import NETWORKS
from ale.specs.kinds import CAPABILITIES
from ale.specs.sandbox_protocols import SANDBOX_PROTOCOLS, Snapshots, meaning
from ale_rock.wire import CreateSandbox

SNAPSHOTS = Snapshots.__name__
_PROTOCOLS = {protocol.__name__: meaning(protocol) for protocol in SANDBOX_PROTOCOLS}


def needed(order: CreateSandbox, for_rock: bool) -> frozenset[str]:
    """Return what a worker must be able to do."""
    spec, limits = order.spec, order.spec.resources.model_dump(exclude={"gpus"}, exclude_none=True)
    asked = {
        NETWORKS[spec.network]: True,
        "gpu": bool(spec.resources.gpus),
        "images": spec.image is not None and not for_rock,
        "limits": bool(limits) and not for_rock,
        SNAPSHOTS: order.keeps_files or spec.from_snapshot is not None,
    }
    return frozenset(name for name, is_asked in asked.items() if is_asked)


def wished(order: CreateSandbox, for_rock: bool, keeps_files: bool) -> frozenset[str]:
    """Return what a worker must be able to do if any worker is."""
    of_rock = {"limits", *({"images"} if order.spec.image is not None else ())} if for_rock else set()
    return frozenset({*of_rock, *({SNAPSHOTS} if keeps_files else ())})


def explain(names: frozenset[str]) -> str:
    """Say what abilities are."""
    known = {**CAPABILITIES["sandbox"], **_PROTOCOLS}
    return " and ".join(f"'{name}' ({known.get(name, 'unknown')})" for name in sorted(names))
