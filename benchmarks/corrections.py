"""The corrections of `ale_torch.losses.rollout_correction` beside the code of verl and ROLL, on random batches: largest
difference. It ends with an error if one is above 1e-9.

Neither is installed, and nothing of them is in this repository: name a folder that holds an unpacked wheel of verl, and
one with ROLL's repository. Of each the one module that corrects is imported. What it imports of its framework is empty,
but for sums and means over a mask, which are here: those of the frameworks add 1e-8 to the number of tokens.

    pip download --no-deps verl && unzip verl-*.whl -d VERL
    git clone the repository alibaba/ROLL, as ROLL
    python benchmarks/corrections.py --verl VERL --roll ROLL
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ale_torch.losses.rollout_correction import accept, unit_ratio, weigh
from ale_torch.losses.settings import Correction, RatioUnit

ROWS, LENGTH, BATCHES, CAP, BOUNDS = 32, 40, 50, 2.0, (0.7, 1.5)
LARGEST = 1e-9
"""The largest difference that is only rounding."""

VERL_MODULES = {
    "verl.utils": {},
    "verl.protocol": {"DataProto": object},
    "verl.trainer.config.algorithm": {"RolloutCorrectionConfig": object},
    "verl.workers.config.actor": {"PolicyLossConfig": object},
}
VERL_REJECTIONS: dict[RatioUnit, str] = {"token": "token_k1", "trajectory": "seq_mean_k1", "sequence": "seq_sum_k1"}
ROLL_UNITS: dict[RatioUnit, str] = {
    "token": "token",
    "chunk": "segment",
    "trajectory": "geometric",
    "sequence": "sequence",
}


@dataclass(frozen=True)
class Batch:
    """Log-probabilities [ROWS, LENGTH] of both sides, the tokens that were sampled, and these tokens' chunks.

    A row is a trajectory, and a run of tokens in it is a chunk, as for ROLL."""

    old: Tensor
    engine: Tensor
    mask: Tensor
    chunk_ids: Tensor
    chunks: Any

    @classmethod
    def random(cls, seed: int) -> Batch:
        """Rows of different lengths, with gaps."""
        g = torch.Generator().manual_seed(seed)
        engine = -torch.rand(ROWS, LENGTH, dtype=torch.float64, generator=g) * 5
        old = engine + 0.3 * torch.randn(ROWS, LENGTH, dtype=torch.float64, generator=g)
        lengths = torch.randint(1, LENGTH + 1, (ROWS, 1), generator=g)
        mask = (torch.arange(LENGTH) < lengths) & (torch.rand(ROWS, LENGTH, generator=g) < 0.8)
        mask[:, 0] = True
        begins = starts_of(mask)
        row_of_chunk = torch.arange(ROWS)[:, None].expand(ROWS, LENGTH)[begins]
        chunk_ids = begins.flatten().cumsum(0)[mask.flatten()] - 1
        return cls(old, engine, mask, chunk_ids, SimpleNamespace(trajectory=row_of_chunk))

    def ratio(self, unit: RatioUnit) -> Tensor:
        """Our ratio of each sampled token's unit."""
        return unit_ratio(self.old[self.mask], self.engine[self.mask], unit, self.chunk_ids, self.chunks)


def starts_of(mask: Tensor) -> Tensor:
    """Return where a run of tokens begins. [ROWS, LENGTH] bool"""
    before = torch.zeros_like(mask)
    before[:, 1:] = mask[:, :-1]
    return mask & ~before


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None, axis: int | None = None) -> Tensor:
    """The function of that name of both; one calls the axis `dim`."""
    return torch.where(mask.bool(), values, 0.0).sum(dim=axis if dim is None else dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None, axis: int | None = None) -> Tensor:
    """The function of that name of both, but for the 1e-8 that they add to the number of tokens."""
    return masked_sum(values, mask, dim, axis) / mask.sum(dim=axis if dim is None else dim)


def mean_of_runs(values: Tensor, mask: Tensor) -> Tensor:
    """ROLL's mean over each run of sampled tokens, by a loop; 0 elsewhere."""
    out = torch.zeros_like(values)
    for row in range(len(values)):
        run: list[int] = []
        for t in [*range(values.shape[1]), None]:
            if t is not None and mask[row, t]:
                run.append(t)
            elif run:
                out[row, run] = values[row, run].mean()
                run = []
    return out


def import_alone(file: Path, modules: dict[str, dict[str, Any]]) -> Any:
    """Import a module of a framework, of which there is nothing else but `modules` with these contents."""
    for name, contents in modules.items():
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:i]), ModuleType(".".join(parts[:i])))
        vars(sys.modules[name]).update(contents)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None or not file.is_file():
        sys.exit(f"There is no {file}: the folder is to hold what this file's first lines say.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Differences = Iterator[tuple[str, Tensor, Tensor]]
"""What was compared: its name, ours, theirs."""


def beside_verl(folder: Path) -> Callable[[Batch], Differences]:
    """Compare weights by token and sequence, truncated and masked, and rejection by token, sequence, and mean."""
    functions = {"masked_sum": masked_sum, "masked_mean": masked_mean}
    contents = {"torch_functional": SimpleNamespace(**functions)}
    modules = {**VERL_MODULES, "verl.utils": contents, "verl.utils.torch_functional": functions}
    verl = import_alone(folder / "verl/trainer/ppo/rollout_corr_helper.py", modules)

    def compare(batch: Batch) -> Differences:
        log_ratio, mask = batch.old - batch.engine, batch.mask.double()
        units: tuple[RatioUnit, ...] = ("token", "sequence")
        for unit in units:
            for ours, threshold in (
                (Correction(weight="truncate", level=unit, cap=CAP), CAP),
                (Correction(weight="mask", level=unit, cap=CAP), f"{1 / CAP}_{CAP}"),
            ):
                theirs, _ = verl.compute_rollout_correction_weights(log_ratio, mask, unit, threshold)
                yield f"verl: weight {ours.weight}, {unit}", weigh(batch.ratio(unit), ours), theirs[batch.mask]
        for unit, option in VERL_REJECTIONS.items():
            theirs, _ = verl.compute_rollout_rejection_mask(log_ratio, mask, option, f"{BOUNDS[0]}_{BOUNDS[1]}")
            # verl's k1 is the ratio the other way round: of the engine to the trainer.
            yield f"verl: reject, {unit}", accept(1 / batch.ratio(unit), BOUNDS), theirs[batch.mask]

    return compare


def beside_roll(folder: Path) -> Callable[[Batch], Differences]:
    """Compare truncated weights and rejection, by token, segment (chunk), geometric mean and sequence."""
    modules: dict[str, dict[str, Any]] = {
        "roll.utils.functionals": {
            "masked_sum": masked_sum,
            "masked_mean": masked_mean,
            "agg_loss": lambda **_: torch.zeros(()),  # for its metrics
        },
        "roll.pipeline.agentic.utils": {"compute_segment_masked_mean": mean_of_runs},
        "roll.configs.base_config": {"TrainInferCorrectionConfig": object},
        "roll.utils.logging": {"get_logger": lambda: None},
    }
    roll = import_alone(folder / "roll/utils/train_infer_corrections.py", modules)

    def compare(batch: Batch) -> Differences:
        for unit, name in ROLL_UNITS.items():
            weight = SimpleNamespace(enabled=True, weight_type=name, upper_bound=CAP, detach=True)
            bounds = {"ratio_enabled": True, "ratio_low": BOUNDS[0], "ratio_high": BOUNDS[1], "diff_enabled": False}
            config = SimpleNamespace(is_weight=weight, filters=[SimpleNamespace(enabled=True, agg_type=name, **bounds)])
            weights, kept, _ = roll.compute_train_infer_correction(config, batch.mask, batch.old, batch.engine)
            ratio = batch.ratio(unit)
            ours = weigh(ratio, Correction(weight="truncate", level=unit, cap=CAP))
            yield f"ROLL: weight truncate, {unit}", ours, weights[batch.mask]
            yield f"ROLL: reject, {unit}", accept(ratio, BOUNDS), kept[batch.mask]

    return compare


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", type=Path, help="folder with an unpacked wheel of verl")
    parser.add_argument("--roll", type=Path, help="folder with ROLL's repository")
    given = parser.parse_args()
    if given.verl is None and given.roll is None:
        parser.error("there is nothing to compare with; give --verl, --roll or both")
    peers = [] if given.verl is None else [beside_verl(given.verl)]
    peers += [] if given.roll is None else [beside_roll(given.roll)]
    apart: dict[str, float] = {}
    for seed in range(BATCHES):
        batch = Batch.random(seed)
        for compare in peers:
            for name, ours, theirs in compare(batch):
                gap = float((ours.double() - theirs.double()).abs().max())
                apart[name] = max(apart.get(name, 0.0), gap if gap == gap else float("inf"))  # nan is no agreement
    print(
        f"{BATCHES} batches of {ROWS} rows of up to {LENGTH} tokens, float64: largest difference from the peers' code"
    )
    for name, value in apart.items():
        print(f"{name:<36}{value:.1e}")
    if max(apart.values()) > LARGEST:
        sys.exit(f"A difference is above {LARGEST:g}.")


if __name__ == "__main__":
    main()
