"""Named points at which a process kills itself: it comes to a line of the product's code for the nth time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from importlib import import_module
from typing import Any

Where = tuple[str, str, bool]
"""Module in which the function is looked up, function or Class.method, and whether it is killed after the call (else
before it)."""
POINTS: dict[str, Where] = {
    "a rollout is stored": ("ale.store.run_store", "RunStore._insert_trajectory", True),
    "an update is made": ("ale_torch.training.worker", "RankWorker.update", True),
    "weights are published": ("ale_torch.training.worker", "RankWorker.publish", True),
    "the engine loads weights": ("ale_engine_torch.engine", "TorchEngine.load_weights", False),
    "a step is committed": ("ale.store.run_store", "RunStore.add_metrics", True),
    "the trainer's state is written": ("ale_torch.training.worker", "write_state", False),
    "a checkpoint is put in place": ("ale_train.rl.checkpoint", "put_in_place", False),
    "a checkpoint was put in place": ("ale_train.rl.checkpoint", "put_in_place", True),
    "an evaluation begins": ("ale_train.evaluation.evaluate", "_evaluate_set", False),
    "a resumed run restores the trainer": ("ale_torch.training.worker", "RankWorker.restore", True),
    "a resumed run undoes what came after": ("ale_train.rl.checkpoint", "undo_after", False),
    "a resumed run has undone it": ("ale_train.rl.checkpoint", "undo_after", True),
}
IN_A_RESUME = {name for name in POINTS if name.startswith("a resumed run")}


def arm(name: str, nth: int) -> None:
    """Let this process be killed when it comes to a point for the nth time."""
    module_name, path, after = POINTS[name]
    owner: Any = import_module(module_name)
    *inner, attribute = path.split(".")
    for part in inner:
        owner = getattr(owner, part)
    original: Callable[..., Any] = getattr(owner, attribute)
    calls = 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **options)
        if calls == nth and after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, counted)
