"""The kinds of plugin, and the version of their contracts."""

API_VERSION = "1.0"
"""Version of the plugin contracts. A driver made for another major version is refused."""

KINDS = ("sandbox", "engine", "trainer", "algorithm", "scaffold", "reward", "tasks")
"""The kinds of driver; each has the entry-point group `ale.<kind>`."""
