"""Run `ale` with one part that hangs from RL step 2 on: `hang.py PART once|always ale's arguments`.

The watchdog sees something move as long as it does not hang: on a busy machine nothing may move for some seconds."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

PARTS = {
    "exec": ("ale_sandbox.sandboxes.sandbox", "ResidentSandbox", "exec"),
    "engine": ("ale_engine_torch.engine", "TorchEngine", "generate"),
    "reward": ("ale_tests.reward", "TestsReward", "score"),
    "hook": ("ale_train.observers.print_metrics", "PrintTracker", "ale_step_finished"),
    "store": ("ale.store.run_store", "RunStore", "_insert_trajectory"),
    "sync": ("ale.store.run_store", "RunStore", "sync"),
    "update": ("ale_torch.training.ranked_trainer", "RankedTrainer", "update"),
    "save": ("ale_torch.training.ranked_trainer", "RankedTrainer", "save"),
}
FOREVER_S = 10_000


def main() -> None:
    """Patch the part, and a step to arm it; then be the command."""
    part, how, *arguments = sys.argv[1:]
    module, owner, name = PARTS[part]
    left = hanging = 0

    @contextmanager
    def hang() -> Iterator[None]:
        nonlocal hanging
        hanging += 1
        try:
            yield
        finally:
            hanging -= 1

    def hangs() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    from ale_train.rl.loop import Training
    from ale_train.rl.watchdog import Watchdog

    step, begin = Training._step, Watchdog.__init__

    async def armed(self: Any, number: int) -> Any:
        nonlocal left
        if number == 2:
            left = 1 if how == "once" else FOREVER_S
        return await step(self, number)

    def watch(self: Any, bench: Any, *, moves: Any, **settings: Any) -> None:
        begin(self, bench, moves=lambda: moves() if hanging else object(), **settings)

    Training._step = armed  # type: ignore[method-assign]
    Watchdog.__init__ = watch  # type: ignore[method-assign]
    kind = getattr(import_module(module), owner)
    original = getattr(kind, name)
    if asyncio.iscoroutinefunction(original):

        async def patched(*values: Any, **options: Any) -> Any:
            if hangs():
                with hang():
                    if part == "sync":
                        values[0]._writer.submit(time.sleep, FOREVER_S)  # the store's thread, as a disk would
                        return await original(*values, **options)
                    await asyncio.sleep(FOREVER_S)
            return await original(*values, **options)

    else:

        def patched(*values: Any, **options: Any) -> Any:  # type: ignore[misc]
            if hangs():
                with hang():
                    time.sleep(FOREVER_S)
            return original(*values, **options)

    patched.__dict__.update(vars(original))  # what pluggy has put on a hook
    patched.__name__ = name
    patched.__code__ = patched.__code__.replace(co_name=name)
    if not asyncio.iscoroutinefunction(original):
        patched.__wrapped__ = original  # type: ignore[attr-defined]  # pluggy reads the arguments from here
    setattr(kind, name, patched)
    from ale.cli.main import main as command

    sys.argv = ["ale", *arguments]
    command()


if __name__ == "__main__":
    main()
