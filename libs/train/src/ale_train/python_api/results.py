"""What a run left: its folder, its summary, and its rollouts and metrics as lists that pandas can take over."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale.store.run_store import SUMMARY_NAME, RunStore
from ale.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A number that a run stored for a step of a stage; `docs/metrics.md` explains the names."""

    stage: str
    step: int
    name: str
    value: float


class Metrics(list[MetricValue]):
    """The metrics of a run, by stage, name and step."""

    def __repr__(self) -> str:
        names = Counter(m.stage for m in {(m.stage, m.name): m for m in self}.values())
        return f"<{len(self)} values{_list_counts(names, 'metrics of ')}>"

    def to_pandas(self) -> Any:
        """Return a data frame with a row for each step of a stage, and a column for each metric. Raises `ConfigError`
        if pandas is not installed."""
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for m in self:
            rows.setdefault((m.stage, m.step), {"stage": m.stage, "step": m.step})[m.name] = m.value
        return _pandas().DataFrame([*rows.values()], columns=None if rows else ["stage", "step"])


class Trajectories(list[Trajectory]):
    """The rollouts of a run, in the order in which they finished; rejected ones too."""

    def __repr__(self) -> str:
        return f"<{len(self)} rollouts{_list_counts(Counter(t.stage for t in self))}>"

    def to_pandas(self) -> Any:
        """Return a data frame with a row for each rollout; `prompt` is the last user's message before the first reply,
        `completion` the text of the last reply. Raises `ConfigError` if pandas is not installed."""
        rows = [_row(t) for t in self]
        return _pandas().DataFrame(rows, columns=None if rows else ["id", "stage", "step", "task_id", "reward"])


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    folder: Path
    summary: dict[str, Any]
    """The content of summary.json; empty if the run has not ended, or was killed."""

    def __repr__(self) -> str:
        success = (f"{label}: success {figures['success']:.3f}" for label, figures in self.evaluations.items())
        return f"Result({', '.join([str(self.folder), self.summary.get('status', 'not ended'), *success])})"

    @property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Return the figures of each evaluation by its label, such as `after_rl`, in their order."""
        found: dict[str, dict[str, Any]] = self.summary.get("heldout", {})
        return found

    def metrics(self, stage: str | None = None) -> Metrics:
        """Return the metrics of a stage (`rl`, `eval`, `sft`, ...), or of all."""
        with RunStore.open(self.folder) as store:
            return Metrics(_metrics(store, store.stages() if stage is None else [stage]))

    def trajectories(self, stage: str | None = None) -> Trajectories:
        """Return the rollouts of a stage, or of all."""
        with RunStore.open(self.folder) as store:
            found = store.trajectories() if stage is None else store.trajectories("stage = ?", (stage,))
            return Trajectories(found)


def read_run(folder: Path | str) -> Result:
    """Return what a run left in its folder, also while it runs. Raises `ConfigError` if there is no run."""
    folder = Path(folder)
    RunStore.open(folder).close()
    try:
        summary = json.loads((folder / SUMMARY_NAME).read_text())
    except FileNotFoundError:
        summary = {}
    except ValueError as error:
        raise ConfigError(f"{folder / SUMMARY_NAME} cannot be read as JSON: {error}.") from None
    return Result(folder, summary)


def _list_counts(counts: Counter[str], what: str = "") -> str:
    return "".join(f", {count} {what}{stage}" for stage, count in counts.items())


def _metrics(store: RunStore, stages: list[str]) -> Iterator[MetricValue]:
    for stage in stages:
        for name, points in store.metrics(stage).items():
            yield from (MetricValue(stage, step, name, value) for step, value in points)


def _row(t: Trajectory) -> dict[str, Any]:
    score = asdict(t.reward) if t.reward is not None else {}
    turns = [(t.sequences[chunk.sequence].messages, chunk.turn) for chunk in t.turns]
    asked = [message.content for message in turns[0][0][: turns[0][1]] if message.role == "user"] if turns else []
    parts = score.get("parts", {})
    return {
        "id": t.id,
        "stage": t.stage,
        "step": t.step,
        "split": t.split,
        "task_id": t.task_id,
        "group": t.group,
        "tags": t.tags,
        "prompt": asked[-1] if asked else "",
        "completion": turns[-1][0][turns[-1][1]].content if turns else "",
        "policy_version": t.policy_version,
        "reward": score.get("value"),
        "passed": score.get("passed"),
        "detail": score.get("detail", ""),
        "rejected": t.rejected,
        "ended_by": t.ended_by,
        "turns": len(t.turns),
        "sampled_tokens": t.sampled_tokens,
        "seconds": t.seconds,
    } | {f"parts/{name}": value for name, value in parts.items()}


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise ConfigError(
            "to_pandas() makes a data frame of pandas, which is not installed: `pip install pandas`."
        ) from None
