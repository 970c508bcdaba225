"""Imports megatron-core without its warnings, and without wandb.

megatron-core warns of every missing package of NVIDIA's, and these warnings would fill the end of a rank's output that
an error shows. It imports wandb wherever that is installed, and wandb leaves folders for temporary files, which a rank
never removes because it ends at once.
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
