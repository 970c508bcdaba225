"""The kinds of plugin, the version of their contracts, and the words for what a driver can do beyond its contract.

Versions are `MAJOR.MINOR`. A minor version adds; what it deprecates still works in it, with a warning, and is gone in
the next one. So a plugin that uses nothing deprecated in 1.1 works with 1.1 and 1.2, and declares `>=1.1,<1.3`.
"""

API_VERSION = "1.1"
"""Version of the plugin contracts of this ALE."""

KINDS = ("sandbox", "engine", "trainer", "algorithm", "scaffold", "reward", "tasks", "tool_format")
"""The kinds of driver; each has the entry-point group `ale.<kind>`."""

HOOKS = "hooks"
"""The observers' group is `ale.hooks`; to commands they are one more kind."""

ALL_KINDS = (*KINDS, HOOKS)

CAPABILITIES = {
    "sandbox": {
        "snapshot": "keeps the file system's state by name, and starts from it",
        "fork": "starts from a snapshot in milliseconds",
        "checkpoint": "keeps running processes in a snapshot",
        "shell": "has a persistent shell",
        "streaming": "hands output out as it is written",
        "trees": "copies trees of files in and out",
        "reset": "can be made as new, and shows that it is",
        "attach": "lets other processes of the same user run commands in its sandboxes",
        "images": "starts from container images",
        "users": "runs commands as another user than the agent",
        "isolated": "the host is out of reach",
        "limits": "enforces resources",
        "gpu": "passes GPUs through",
        "network_none": "can cut every network path",
        "network_endpoint": "can let nothing but the model endpoint through",
        "egress_policy": "can let only the allowed hosts and ports through",
        "network_full": "can give the host's network",
    },
    "engine": {
        "real_tokens": "a model samples the tokens",
        "weight_update_in_place": "takes weights from memory while it runs",
        "weight_update_from_folder": "takes weights from a Hugging Face folder while it runs",
        "sleep": "gives its memory back until it is woken",
        "streaming": "hands tokens out as they are sampled",
        "gpu": "uses a GPU",
    },
    "trainer": {
        "weights_in_memory": "publishes weights in memory",
        "weights_in_folder": "publishes weights as a Hugging Face folder",
        "scratch": "makes small models from nothing",
        "reference": "keeps a frozen reference policy",
        "gpu": "uses a GPU",
    },
    "algorithm": {},
    "scaffold": {},
    "reward": {},
    "tasks": {"demonstrations": "shows how its tasks are done"},
    "tool_format": {},
    "hooks": {},
}
"""What drivers of a kind may say they can do. A capability of one's own carries a dot: `acme.migrate`."""
