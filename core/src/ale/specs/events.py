"""The pluggy hook specs: what an observer may hear. Observers come through the entry-point group `ale.hooks`.

1. A run registers the observers that its `observers:` names, and no other.
2. An observer is best a class made from `Observer`, built with its settings like any driver; a module or an object
   whose functions carry `hookimpl` will do. It takes only the arguments that it wants, by their names.
3. Calls are synchronous, one observer after the other, and never stand on the token path: be quick.
4. An observer that raises is logged, and after three errors it is told nothing more. In the two *veto* hooks
   (`ale_before_exec`, `ale_filter_trajectory`) an error is a refusal, however often.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pluggy

from ale.messages import Message
from ale.specs.driver import Driver
from ale.specs.sandbox import ExecResult
from ale.specs.trainer import TrainBatch
from ale.task import Task
from ale.trajectory import Chunk, Trajectory

PROJECT = "ale"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

VETO_HOOKS = frozenset({"ale_before_exec", "ale_filter_trajectory"})
"""The hooks whose answer, or error, refuses."""

ExecBy = Literal["agent", "reward"]
"""Who runs a command in a sandbox."""


class Observer(Driver):
    """An observer with settings: its methods that carry `hookimpl` are called. `start` and `close` frame the run.

    `start` comes before `ale_run_started`, `close` after `ale_run_finished`; `context.run_dir` is there from
    `ale_run_started` on.
    """


class HookSpecs:
    """Every hook of ALE."""

    @hookspec
    def ale_run_started(self, run_id: str, run_dir: Path, config: Mapping[str, Any]) -> None:
        """A run begins; `config` is the resolved configuration, secrets as the references that the file holds."""

    @hookspec
    def ale_sandbox_started(self, sandbox_id: str, episode_id: str, task: Task) -> None:
        """A sandbox for this episode of the task has started. The episode's id is its session's and trajectory's too.

        One whose id begins with `walk-` replays an expert to keep states of its sandbox, and has no trajectory.
        """

    @hookspec
    def ale_before_exec(self, sandbox_id: str, episode_id: str, task: Task, command: str, stdin: bytes) -> str | None:
        """The agent is about to run a command; return a sentence to refuse it.

        The command then does not run: the agent sees exit code 126 and `refused: ` with the sentence on stderr.
        """

    @hookspec
    def ale_exec_started(
        self, sandbox_id: str, episode_id: str, task: Task, by: ExecBy, command: str, stdin: bytes
    ) -> None:
        """A command, the agent's (not refused) or the reward's, is handed to the sandbox."""

    @hookspec
    def ale_exec_finished(
        self, sandbox_id: str, episode_id: str, task: Task, by: ExecBy, command: str, result: ExecResult | None,
        error: str | None,
    ) -> None:  # fmt: skip
        """The command is over: with a `result`, or with the `error` (of the sandbox, or its cancellation) that ended it.

        A refused command comes here too, without `ale_exec_started`: its result is what the agent sees.
        """

    @hookspec
    def ale_network_refused(
        self, sandbox_id: str, labels: Mapping[str, str], protocol: str, host: str, port: int, count: int, reason: str
    ) -> None:
        """A sandbox tried to reach what its network policy does not let through, so many times; `labels` name its run,
        episode and task. Protocols: tcp, udp, icmp, name (a DNS question), other (more than could be told apart)."""

    @hookspec
    def ale_model_called(self, session_id: str, chunk: Chunk, message: Message) -> None:
        """The model, or whoever answers in its place (`chunk.sampled` is false), answered a call with `message`."""

    @hookspec
    def ale_trajectory_finished(self, trajectory: Trajectory) -> None:
        """A rollout has ended and is stored."""

    @hookspec
    def ale_filter_trajectory(self, trajectory: Trajectory) -> str | None:
        """A rollout is about to enter training (stage `rl`, `demonstrations` or `experts`, not an evaluation's episode or an
        attempt at a task); return the reason to keep it out."""

    @hookspec
    def ale_batch_ready(self, step: int, batch: TrainBatch) -> None:
        """A batch of an RL step is packed and about to be trained on."""

    @hookspec
    def ale_step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """A training step is done (stage `cpt`, `sft` or `rl`), or an evaluation (stage `eval`)."""

    @hookspec
    def ale_run_finished(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """The run is over, whichever way; `summary` is what stands in summary.json."""

    @hookspec
    def ale_commands(self, app: Any) -> None:
        """Add commands to the `ale` command line (`app` is its typer application); called for an unknown command."""
