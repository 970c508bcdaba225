"""Which runs an experiment needs, and in which folders.

OUT/warm/RECIPE/seed-N            the warm start that all arms of a seed begin from
OUT/NAME/seed-N/ARM               an arm
OUT/NAME/seed-N/ARM/probes/step-N an evaluation of one of its checkpoints
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from ale.config import load_run_config
from ale_lab.experiment import Arm, Experiment, Probe, recipe_path

WARM_ONLY = ("rl=null", "eval.every=0")
EVALUATE_ONLY = ("sft=null", "rl=null", "trainer=null", "model.scratch=null")
QUICK_WARM = ("model.scratch.hidden_size=32", "model.scratch.layers=1", "sft.demonstrations.count=36", "sft.steps=12")
QUICK_ARM = ("rl.steps=2", "rl.prompts_per_step=2", "eval.every=1")
QUICK = ("eval.episodes=8",)


@dataclass(frozen=True, slots=True)
class Run:
    """One `ale run`: its name for people, its folder, the run file and the overrides."""

    name: str
    folder: Path
    recipe: Path
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the runs of an experiment lie, and how long they are."""

    out: Path
    quick: bool = False

    def warm_start(self, experiment: Experiment, seed: int) -> Run:
        """The run that makes a seed's warm start; experiments with the same recipe share it."""
        recipe = experiment.recipe
        overrides = (f"seed={seed}", *WARM_ONLY, *((*QUICK, *QUICK_WARM) if self.quick else ()))
        return Run(f"{recipe}, seed {seed}: warm start", self._warm(recipe, seed), recipe_path(recipe), overrides)

    def arm(self, experiment: Experiment, arm: Arm, seed: int) -> Run:
        """An arm's run."""
        overrides = (
            f"seed={seed}", "sft=null", "model.scratch=null", _policy(self._warm(experiment.recipe, seed) / "model" / "sft"),
            *experiment.overrides, *((*QUICK, *QUICK_ARM) if self.quick else ()), *arm.overrides,
        )  # fmt: skip
        if self.quick and experiment.probe is not None:
            overrides += ("rl.checkpoint_every=1",)
        name = f"{experiment.name}, seed {seed}: {arm.name}"
        return Run(name, self.folder(experiment, arm, seed), recipe_path(experiment.recipe), overrides)

    def probes(self, experiment: Experiment, probe: Probe, arm: Arm, seed: int) -> list[tuple[int, Run]]:
        """Step and run for the start and for each checkpoint that the arm's run has left."""
        folder = self.folder(experiment, arm, seed)
        policies = {0: self._warm(experiment.recipe, seed) / "model" / "sft"}
        policies |= {int(path.name.removeprefix("step_")): path for path in (folder / "checkpoints").glob("step_*")}
        made = []
        for step, policy in sorted(policies.items()):
            overrides = (
                f"seed={seed}", *experiment.overrides, *EVALUATE_ONLY, _policy(policy), *(QUICK if self.quick else ()),
                *probe.overrides,
            )  # fmt: skip
            name = f"{experiment.name}, seed {seed}: {arm.name}, {probe.name} at step {step}"
            made.append(
                (step, Run(name, folder / "probes" / f"step-{step}", recipe_path(experiment.recipe), overrides))
            )
        return made

    def folder(self, experiment: Experiment, arm: Arm, seed: int) -> Path:
        """The run folder of an arm. One that another experiment has too is not made twice."""
        if experiment.tuned_as is not None and not arm.setting:
            return self.out / experiment.tuned_as.name / f"seed-{seed}" / arm.line
        return self.out / experiment.name / f"seed-{seed}" / arm.name

    def settings(self, experiment: Experiment, arm: Arm) -> str:
        """A digest of all that an arm's runs are made with, but for seed and folders. Raises `ConfigError`."""
        anywhere = replace(self, out=Path("/"))
        runs = (anywhere.warm_start(experiment, 0), anywhere.arm(experiment, arm, 0))
        texts = [load_run_config(run.recipe, list(run.overrides)).to_yaml() for run in runs]
        probed = () if experiment.probe is None else experiment.probe.overrides
        return sha256("\n".join((*texts, *probed)).encode()).hexdigest()

    def _warm(self, recipe: str, seed: int) -> Path:
        return self.out / "warm" / recipe / f"seed-{seed}"


def _policy(folder: Path) -> str:
    return f"model.path={json.dumps(str(folder))}"
