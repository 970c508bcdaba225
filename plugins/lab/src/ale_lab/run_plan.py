"""Plans the runs that an experiment needs, and their folders.

OUT/warm/RECIPE-DIGEST/seed-N     the warm start that all arms of a seed begin from
OUT/NAME/seed-N/ARM               an arm
OUT/NAME/seed-N/ARM/probes/step-N an evaluation of one of its checkpoints
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path

from ale_lab.experiment import Arm, Experiment, Probe, recipe_path
from ale_train.config.load import load_run_config

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
    """The folders and lengths of an experiment's runs."""

    out: Path
    quick: bool = False

    def warm_start(self, experiment: Experiment, seed: int) -> Run:
        """The run that makes a seed's warm start; experiments with the same recipe share it."""
        recipe = experiment.recipe
        overrides = (f"seed={seed}", *_warm_overrides(self.quick))
        return Run(
            f"{recipe}, seed {seed}: warm start", self._warm_start_folder(recipe, seed), recipe_path(recipe), overrides
        )

    def arm(self, experiment: Experiment, arm: Arm, seed: int) -> Run:
        """An arm's run."""
        overrides = (
            f"seed={seed}",
            "sft=null",
            "model.scratch=null",
            _policy_override(self._warm_start_folder(experiment.recipe, seed) / "model" / "sft"),
            *experiment.overrides,
            *((*QUICK, *QUICK_ARM) if self.quick else ()),
            *arm.overrides,
        )
        if self.quick and experiment.probe is not None:
            overrides += ("rl.checkpoint_every=1",)
        name = f"{experiment.name}, seed {seed}: {arm.name}"
        return Run(name, self.folder(experiment, arm, seed), recipe_path(experiment.recipe), overrides)

    def probes(self, experiment: Experiment, probe: Probe, arm: Arm, seed: int) -> list[tuple[int, Run]]:
        """Step and run for the start and for each checkpoint that the arm's run has left."""
        folder = self.folder(experiment, arm, seed)
        policies = {0: self._warm_start_folder(experiment.recipe, seed) / "model" / "sft"}
        policies |= {int(path.name.removeprefix("step_")): path for path in (folder / "checkpoints").glob("step_*")}
        made = []
        for step, policy in sorted(policies.items()):
            overrides = (
                f"seed={seed}",
                *experiment.overrides,
                *EVALUATE_ONLY,
                _policy_override(policy),
                *(QUICK if self.quick else ()),
                *probe.overrides,
            )
            name = f"{experiment.name}, seed {seed}: {arm.name}, {probe.name} at step {step}"
            made.append(
                (step, Run(name, folder / "probes" / f"step-{step}", recipe_path(experiment.recipe), overrides))
            )
        return made

    def folder(self, experiment: Experiment, arm: Arm, seed: int) -> Path:
        """The run folder of an arm; an arm that another experiment has too shares that one's folder."""
        if experiment.tuned_as is not None and not arm.setting:
            return self.out / experiment.tuned_as.name / f"seed-{seed}" / arm.line
        return self.out / experiment.name / f"seed-{seed}" / arm.name

    def settings(self, experiment: Experiment, arm: Arm) -> str:
        """A digest of the settings of an arm and of its warm start, without seed and folders; it does not cover the
        code or the code's defaults. Raises `ConfigError`."""
        run = replace(self, out=Path("/")).arm(experiment, arm, 0)  # its model.path names the warm start's digest
        probed = () if experiment.probe is None else experiment.probe.overrides
        return _digest(run.recipe, run.overrides, probed)

    def _warm_start_folder(self, recipe: str, seed: int) -> Path:
        # The digest in the path gives an arm other settings when its warm start changes.
        digest = _digest(recipe_path(recipe), _warm_overrides(self.quick))
        return self.out / "warm" / f"{recipe}-{digest[:12]}" / f"seed-{seed}"


def _warm_overrides(quick: bool) -> tuple[str, ...]:
    return (*WARM_ONLY, *((*QUICK, *QUICK_WARM) if quick else ()))


@cache
def _digest(recipe: Path, overrides: tuple[str, ...], more: tuple[str, ...] = ()) -> str:
    text = load_run_config(recipe, list(overrides)).to_yaml()
    return sha256("\n".join((text, *more)).encode()).hexdigest()


def _policy_override(folder: Path) -> str:
    return f"model.path={json.dumps(str(folder))}"
