"""The core loads the section `eval` from here: its keys, and what evaluates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ale.specs.package_sections import EvaluationSection
from ale_evaluation.config import EvaluationConfig


class Eval(EvaluationConfig, EvaluationSection):
    """`eval`."""

    def splits(self, path: str) -> Sequence[str]:
        """See `EvaluationSection.splits`."""
        sets = {f"eval.sets.{name}.tasks": chosen for name, chosen in self.chosen_sets().items()}
        if path in sets:
            return [sets[path].split]
        return [*dict.fromkeys(chosen.split for chosen in sets.values() if chosen.tasks is None)]

    async def check_tasks(self, bench: Any) -> None:
        """See `EvaluationSection.check_tasks`."""
        from ale_evaluation.evaluate import (
            check_tasks,
        )  # it imports the pipeline, which reading a run file does not need

        await check_tasks(bench, self)

    async def evaluate(self, bench: Any, label: str, step: int) -> None:
        """See `EvaluationSection.evaluate`."""
        from ale_evaluation.evaluate import evaluate

        await evaluate(bench, self, label or self.label, step)
