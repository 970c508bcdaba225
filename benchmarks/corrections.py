"""The corrections of `ale_policy_loss.correction` beside verl's own code, on random batches: largest difference.

verl's module imports all of verl; only `verl.utils.torch_functional`'s masked sums are needed, so the rest is replaced
by empty modules. Unpack a wheel of verl and name the folder:

    pip download --no-deps verl && unzip verl-*.whl -d FOLDER
    python benchmarks/corrections.py FOLDER
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ale_policy_loss.correction import accept, unit_ratio, weigh
from ale_policy_loss.correction_settings import Correction

ROWS, LENGTH, BATCHES, CAP, BOUNDS = 32, 40, 50, 2.0, (0.7, 1.5)


def masked_sum(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """verl's function of that name."""
    return (torch.where(mask.bool(), values, 0.0) * mask).sum(dim=axis)


def masked_mean(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """verl's function of that name, but for the 1e-8 that it adds to the number of tokens."""
    return masked_sum(values, mask, axis) / mask.sum(dim=axis)


def load_verl(folder: Path) -> Any:
    """Import the module of verl that corrects, without the rest of verl."""
    for name in (
        "verl",
        "verl.utils",
        "verl.utils.torch_functional",
        "verl.protocol",
        "verl.trainer",
        "verl.trainer.config",
        "verl.trainer.config.algorithm",
        "verl.workers",
        "verl.workers.config",
        "verl.workers.config.actor",
    ):
        sys.modules[name] = ModuleType(name)
    functional = SimpleNamespace(masked_sum=masked_sum, masked_mean=masked_mean)
    vars(sys.modules["verl.utils"])["torch_functional"] = functional
    vars(sys.modules["verl.utils.torch_functional"]).update(vars(functional))
    vars(sys.modules["verl.protocol"])["DataProto"] = object
    vars(sys.modules["verl.trainer.config.algorithm"])["RolloutCorrectionConfig"] = object
    vars(sys.modules["verl.workers.config.actor"])["PolicyLossConfig"] = object
    spec = importlib.util.spec_from_file_location("helper", folder / "verl/trainer/ppo/rollout_corr_helper.py")
    assert spec is not None
    assert spec.loader is not None
    helper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helper)
    return helper


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verl", type=Path, nargs="?", help="folder with an unpacked wheel of verl")
    folder = parser.parse_args().verl
    if folder is None:
        print("left out: name a folder with an unpacked wheel of verl")
        return
    verl = load_verl(folder)
    low, high = BOUNDS
    apart: dict[str, float] = {}

    def note(name: str, ours: Tensor, theirs: Tensor) -> None:
        apart[name] = max(apart.get(name, 0.0), float((ours - theirs).abs().max()))

    for seed in range(BATCHES):
        g = torch.Generator().manual_seed(seed)
        engine = -torch.rand(ROWS, LENGTH, dtype=torch.float64, generator=g) * 5
        old = engine + 0.3 * torch.randn(ROWS, LENGTH, dtype=torch.float64, generator=g)
        lengths = torch.randint(1, LENGTH + 1, (ROWS, 1), generator=g)
        mask = (torch.arange(LENGTH) < lengths).double()
        here = mask.bool()
        # One chunk a row: verl has no chunks.
        chunk_ids = torch.arange(ROWS)[:, None].expand(ROWS, LENGTH)[here]
        chunks: Any = SimpleNamespace(trajectory=torch.arange(ROWS))
        for level in ("token", "sequence"):
            rho = unit_ratio(old[here], engine[here], level, chunk_ids, chunks)  # type: ignore[arg-type]
            for weight, threshold in (("truncate", CAP), ("mask", f"{1 / CAP}_{CAP}")):
                theirs, _ = verl.compute_rollout_correction_weights(old - engine, mask, level, threshold)
                ours = weigh(rho, Correction(weight=weight, level=level, cap=CAP))  # type: ignore[arg-type]
                note(f"weight {weight}, {level}", ours, theirs[here])
        for level, option in (("token", "token_k1"), ("trajectory", "seq_mean_k1"), ("sequence", "seq_sum_k1")):
            theirs, _ = verl.compute_rollout_rejection_mask(old - engine, mask, option, f"{low}_{high}")
            rho = unit_ratio(old[here], engine[here], level, chunk_ids, chunks)  # type: ignore[arg-type]
            # verl's k1 is the ratio the other way round: of the engine to the trainer.
            note(f"reject, {level}", accept(1 / rho, BOUNDS).double(), theirs[here])
    print(
        f"{BATCHES} batches of {ROWS} rows of up to {LENGTH} tokens, float64: largest difference from verl's own code"
    )
    for name, value in apart.items():
        print(f"{name:<28}{value:.1e}")


if __name__ == "__main__":
    main()
