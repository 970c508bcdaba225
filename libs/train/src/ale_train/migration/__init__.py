"""What the keys and names of verl, TRL, ROLL, verifiers and prime-rl are called here, for errors about unknown ones."""

from ale_train.migration.keys import explain_key
from ale_train.migration.plugin_names import explain_plugin

__all__ = ["explain_key", "explain_plugin"]
