"""The kinds of plugin, the version of their contracts, and the capabilities that a driver may have beyond its contract.

Versions are `MAJOR.MINOR`. A minor version only adds, so a plugin made for 1.0 works with 1.0 and 1.1 and declares
`>=1.0,<1.2`; a major version may change anything.
"""

API_VERSION = "1.0"
"""The version of the plugin contracts of this ALE."""

KINDS = ("sandbox", "engine", "trainer", "algorithm", "scaffold", "reward", "tasks", "tool_format", "cluster")
"""The kinds of driver; each has the entry-point group `ale.<kind>`."""

HOOKS = "hooks"
"""The observers' group is `ale.hooks`; commands treat it as one more kind."""

ALL_KINDS = (*KINDS, HOOKS)


def plugin_noun(kind: str) -> str:
    """Return what a sentence calls a plugin of a kind: `sandbox plugin`, `observer`."""
    return "observer" if kind == HOOKS else f"{kind} plugin"


CAPABILITIES = {
    "sandbox": {
        "fork": "starts from a snapshot in milliseconds",
        "images": "starts from container images",
        "builds": "builds container images from Dockerfiles",
        "users": "runs commands as another user than the agent",
        "isolated": "the host is out of reach",
        "limits": "enforces resources",
        "gpu": "passes GPUs through",
        "network_none": "can cut every network path",
        "network_endpoint": "can let nothing but the model endpoint through",
        "egress_policy": "can let only the allowed hosts and ports through",
        "network_full": "can give the host's network",
    },
    "engine": {"real_tokens": "a model samples the tokens"},
    "trainer": {"values": "has a value head beside the policy"},
    "algorithm": {},
    "scaffold": {},
    "reward": {},
    "tasks": {"demonstrations": "shows how its tasks are done"},
    "tool_format": {},
    "cluster": {},
    "hooks": {},
}
"""The capabilities that drivers of a kind may declare and that a run may require before anything starts. Those that can
be methods are protocols instead (`ale.specs.sandbox_protocols`). Private capabilities contain a dot: `acme.migrate`."""
