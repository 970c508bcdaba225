"""The pluggy hook specs: the events that an observer can react to. Observers use the entry-point group `ale.hooks`.

1. A run registers only the observers that its `observers:` names.
2. An observer should be a class derived from `Observer`, built with its settings like any driver; a module or an object
   whose functions carry `hookimpl` also works. It takes only the arguments that it wants, by their names.
3. Calls are synchronous, one observer after the other, and never happen between two tokens: be quick.
4. An observer that raises is logged, and after three errors only its *veto* hooks are called. In these two
   (`ale_before_exec`, `ale_filter_trajectory`) every error counts as a refusal, however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

EXEC_HOOKS = ("ale_before_exec", "ale_exec_started", "ale_exec_finished")
"""The hooks about commands."""
VETO_HOOKS = frozenset({"ale_before_exec", "ale_filter_trajectory"})
"""The hooks in which an answer, or an error, is a refusal."""

ExecBy = Literal["agent", "reward"]
"""Who runs a command in a sandbox."""


class Observer(Driver):
    """An observer with settings: the run calls its methods that carry `hookimpl`, between `start` and `close`.

    `start` comes before `ale_run_started`, `close` after `ale_run_finished`; `context.run_dir` is set from
    `ale_run_started` on.
    """


class HookSpecs:
    """All hooks of ALE."""

    @hookspec
    def ale_run_started(self, run_id: str, run_dir: Path, config: Mapping[str, Any]) -> None:
        """A run begins; `config` is the resolved configuration, in which secrets are the references of the run file."""

    @hookspec
    def ale_sandbox_started(self, sandbox_id: str, episode_id: str, task: Task) -> None:
        """A sandbox for this episode of the task has started. The session and the trajectory have the episode's id too.

        An episode whose id begins with `start-` prepares the start of others, and has no trajectory.
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
        """A command of the agent (not refused) or of the reward is sent to the sandbox."""

    @hookspec
    def ale_exec_finished(
        self,
        sandbox_id: str,
        episode_id: str,
        task: Task,
        by: ExecBy,
        command: str,
        result: ExecResult | None,
        error: str | None,
    ) -> None:
        """A command has ended: with a `result`, or with the `error` that ended it (a sandbox error or a cancellation).

        A refused command is reported here too, without `ale_exec_started`: its result is what the agent sees.
        """

    @hookspec
    def ale_network_refused(
        self, sandbox_id: str, labels: Mapping[str, str], protocol: str, host: str, port: int, count: int, reason: str
    ) -> None:
        """A sandbox tried `count` times to reach what its network policy refuses; `labels` name its run, episode and
        task. Protocols: tcp, udp, icmp, name (a DNS question), other (there were too many to tell apart)."""

    @hookspec
    def ale_model_called(self, session_id: str, chunk: Chunk, message: Message) -> None:
        """The model, or the responder in its place (`chunk.sampled` is false), answered a call with `message`."""

    @hookspec
    def ale_trajectory_finished(self, trajectory: Trajectory) -> None:
        """A rollout has ended and is stored."""

    @hookspec
    def ale_filter_trajectory(self, trajectory: Trajectory) -> str | None:
        """A rollout is about to enter training (stage `rl`, `demonstrations` or `prepare`, but no episode of an
        evaluation or a qualification); return the reason to keep it out."""

    @hookspec
    def ale_batch_ready(self, step: int, batch: TrainBatch) -> None:
        """A batch of an RL step is packed and about to be trained on."""

    @hookspec
    def ale_add_metrics(
        self, stage: str, step: int, trajectories: Sequence[Trajectory], metrics: Mapping[str, float]
    ) -> Mapping[str, float] | None:
        """Return metrics to add to those of a step, before they are stored: finite numbers under new names.

        `trajectories` are the trusted rollouts of this stage and step, read from the store; a stage that makes none
        (`cpt`, `sft`) has none. One wrong name or number makes all that this observer returned an error of it."""

    @hookspec
    def ale_step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """A training step is done (stage `cpt`, `sft` or `rl`), or an evaluation (stage `eval`)."""

    @hookspec
    def ale_run_finished(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """The run has ended, successfully or not; `summary` is the content of summary.json."""
