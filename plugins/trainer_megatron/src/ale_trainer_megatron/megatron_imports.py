"""Imports megatron-core, quietly and without what it would import only because it is installed.

It warns of every package of NVIDIA's that it does without, which would be all that an error shows of a rank's output.
It would import wandb, to log to it, which this trainer does not: folders for temporary files would be left, which a
rank, that ends at once, never removes.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

modules: Any = sys.modules
before = modules.get("wandb")
modules["wandb"] = None  # at which its import fails
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import megatron.core.distributed
        import megatron.core.models.gpt
        import megatron.core.models.gpt.gpt_layer_specs
        import megatron.core.optimizer
        import megatron.core.timers  # noqa: F401
finally:
    if before is None:
        del modules["wandb"]
    else:
        modules["wandb"] = before
