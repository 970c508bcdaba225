"""Run `ale` that gets a signal at a certain moment: `stops.py STAGE STEP SIGNAL ale's arguments`. A test that watches a
run, and then sends the signal, comes too late on a busy machine."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def main() -> None:
    """Patch what comes to that moment; then be the command."""
    stage, step, name, *arguments = sys.argv[1:]
    left = [signal.Signals[name]]

    def stop() -> None:
        if left:  # a second signal would end the process at once
            os.kill(os.getpid(), left.pop())

    def at_update(training: Any, number: int, *rest: Any) -> Any:
        if number == int(step):
            stop()
        return train(training, number, *rest)

    async def after_step(checkpoints: Any, work: Any) -> Any:
        made = await make(checkpoints, work)
        if checkpoints._stage == stage and checkpoints.done == int(step):
            stop()
        return made

    async def after_rollout(store: Any, trajectory: Any) -> None:
        await save(store, trajectory)
        if (trajectory.stage, trajectory.step) == (stage, int(step)):
            stop()

    from ale.store.run_store import RunStore
    from ale_train.checkpoints.stage_checkpoints import StageCheckpoints
    from ale_train.rl.loop import Training

    train, make, save = Training._train, StageCheckpoints._step, RunStore.save_trajectory
    if stage == "rl":
        Training._train = at_update  # type: ignore[method-assign]
    elif stage == "eval":
        RunStore.save_trajectory = after_rollout  # type: ignore[method-assign]
    else:
        StageCheckpoints._step = after_step  # type: ignore[method-assign]
    from ale.cli.main import main as command

    sys.argv = ["ale", *arguments]
    command()


if __name__ == "__main__":
    main()
