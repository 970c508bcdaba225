"""Compares the trainers `torch` and `megatron`, in one process and over two ranks, with a plain training loop in
`transformers`, and with TRL's `SFTTrainer` where it is installed.

All sides make the same optimizer steps: forward, backward, clipping and AdamW in float32, on the same batches of
rollouts, whose sequences are of very different lengths and carry loss on a third of their tokens. The plain loop is
what one writes first: sequences in order, padded to the longest of their micro-batch of as many positions, logits
of all of them, `log_softmax`, `gather`. TRL's trainer has the likelihood as its loss, which costs the same, and as
many positions in a micro-batch on average. Each side runs in processes of its own, and the sides take turns; together
they have `--threads` CPU threads, of which each rank has its part. With a GPU all run on it, those of one rank.

Printed are tokens a second (padding does not count; medians of all steps but the first, and the range of the rounds'
ratios to the plain loop), the highest resident memory of one process and of all, the share of padding, and the seconds
that a checkpoint takes to save and to restore.

    python benchmarks/trainers.py            # about half an hour on two cores
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from ale.session.tokenizer import train_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.trainer import ChunkTable, Loss, LossInput, LossOutput, TrainBatch

MODELS = {
    "0.4 M": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 720},
    "52 M": {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "vocab_size": 32_000},
}
SIDES: dict[str, dict[str, Any]] = {
    "plain loop": {},
    "TRL": {},
    "torch": {},
    "torch, 2 ranks": {"ranks": 2},
    "megatron": {},
    "megatron, tensor parallel 2": {"ranks": 2, "tensor_parallel": 2},
    "megatron, pipeline parallel 2": {"ranks": 2, "pipeline_parallel": 2},
    "megatron, 2 copies": {"ranks": 2},
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MICRO_BATCH_TOKENS = 4096
MIB = 1 << 20


@dataclass(frozen=True)
class Surrogate(Loss):
    """REINFORCE with advantages of both signs."""

    def __call__(self, inputs: LossInput) -> LossOutput:
        advantages = inputs.chunks.returns[inputs.chunk_ids]
        return LossOutput(-(advantages * inputs.logprobs).sum() / inputs.normalizer, {})


def make_batch(seed: int, vocabulary: int, trajectories: int) -> TrainBatch:
    """Rollouts of one sequence each, of 60 to 1,500 tokens, a third of them with loss."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(5.4, 0.8, trajectories).astype(np.int64), 60, 1500)
    trained = [np.arange(n) % 60 >= 40 for n in lengths]
    rows = np.arange(trajectories)
    ids = np.concatenate([np.where(mask, row, -1) for row, mask in zip(rows, trained, strict=True)])
    returns = rng.choice([-0.5, 0.5], trajectories).astype(np.float32)
    table = ChunkTable(rows, 0 * rows, 0 * rows + 1, returns, returns > 0)
    n = int(lengths.sum())
    return TrainBatch(
        rng.integers(0, vocabulary, n), lengths, rows, ids, np.zeros(n, np.float32), table, float((ids >= 0).sum())
    )


async def run_trainer(name: str, folder: Path, batches: list[TrainBatch], threads: int) -> dict[str, Any]:
    """Time a trainer's updates, and a checkpoint."""
    from ale_trainer_megatron import MegatronTrainer
    from ale_trainer_torch import TorchTrainer

    cls: Any = MegatronTrainer if name.startswith("megatron") else TorchTrainer
    layout = SIDES[name]
    each = max(1, threads // layout.get("ranks", 1))
    config = cls.Config(**layout, device=DEVICE, threads=each, lr=1e-4, micro_batch_tokens=MICRO_BATCH_TOKENS)
    async with cls(config, DriverContext()) as trainer:
        await trainer.load(folder)
        found = []
        waste = 0.0
        for batch in batches:
            began = time.perf_counter()
            waste = (await trainer.update(batch, Surrogate()))["padding_waste"]
            found.append(len(batch.token_ids) / (time.perf_counter() - began))
        with tempfile.TemporaryDirectory() as place:
            began = time.perf_counter()
            await trainer.save(Path(place) / "saved")
            saved = time.perf_counter()
            await trainer.restore(Path(place) / "saved")
            return {"rates": found, "waste": waste, "save": saved - began, "restore": time.perf_counter() - saved}


def run_plain(folder: Path, batches: list[TrainBatch], threads: int) -> dict[str, Any]:
    """Time a plain loop's updates."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0)
    found = []
    real = computed = 0
    for batch in batches:
        began = time.perf_counter()
        ends = np.cumsum(batch.lengths)
        rows = [
            (torch.from_numpy(batch.token_ids[e - n : e]), batch.chunk_ids[e - n : e])
            for e, n in zip(ends, batch.lengths, strict=True)
        ]
        optimizer.zero_grad()
        while rows:
            part: list[Any] = []
            while rows and (len(part) + 1) * max(len(r[0]) for r in [*part, rows[0]]) <= MICRO_BATCH_TOKENS:
                part.append(rows.pop(0))
            longest = max(len(tokens) for tokens, _ in part)
            tokens = torch.stack([torch.nn.functional.pad(t, (0, longest - len(t))) for t, _ in part])
            there = torch.stack([torch.arange(longest) < len(t) for t, _ in part])
            chunks = torch.stack(
                [torch.nn.functional.pad(torch.from_numpy(c), (0, longest - len(c)), value=-1) for _, c in part]
            )
            tokens, there, chunks = tokens.to(DEVICE), there.to(DEVICE), chunks.to(DEVICE)
            logits = model(input_ids=tokens, attention_mask=there.long(), use_cache=False).logits[:, :-1].float()
            logprobs = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
            wanted = chunks[:, 1:] >= 0
            returns = torch.from_numpy(batch.chunks.returns).to(DEVICE)[chunks[:, 1:].clamp(min=0)]
            (-(returns * logprobs)[wanted].sum() / batch.normalizer).backward()
            real, computed = real + int(there.sum()), computed + there.numel()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(len(batch.token_ids) / (time.perf_counter() - began))
    return {"rates": found, "waste": 1 - real / computed}


def run_trl(folder: Path, batches: list[TrainBatch], threads: int) -> dict[str, Any]:
    """Time the steps of TRL's trainer."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    torch.set_num_threads(threads)
    began, found = [0.0], list[float]()

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            began[0] = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            found.append(len(batches[len(found)].token_ids) / (time.perf_counter() - began[0]))

    rows = []
    for batch in batches:
        ends = np.cumsum(batch.lengths)
        for end, n in zip(ends, batch.lengths, strict=True):
            mask = (batch.chunk_ids[end - n : end] >= 0).astype(int).tolist()
            rows.append({"input_ids": batch.token_ids[end - n : end].tolist(), "completion_mask": mask})
    per_step = len(batches[0].lengths)
    mean = sum(len(row["input_ids"]) for row in rows) / len(rows)
    per_pass = max(n for n in range(1, per_step + 1) if per_step % n == 0 and n * mean <= MICRO_BATCH_TOKENS)
    with tempfile.TemporaryDirectory() as place:
        config = SFTConfig(
            output_dir=place,
            per_device_train_batch_size=per_pass,
            gradient_accumulation_steps=per_step // per_pass,
            max_steps=len(batches),
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            max_length=None,
            completion_only_loss=True,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=DEVICE == "cpu",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            shuffle_dataset=False,
        )
        SFTTrainer(
            model=str(folder),
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(str(folder)),
            callbacks=[Clock()],
        ).train()
    padded = sum(
        per_pass * max(len(row["input_ids"]) for row in rows[i : i + per_pass]) for i in range(0, len(rows), per_pass)
    )
    return {"rates": found, "waste": 1 - len(rows) * mean / padded}


def measure_side(side: str, folder: Path, steps: int, trajectories: int, threads: int) -> dict[str, Any]:
    """Run one side in a process of its own, and watch the memory of all its processes."""
    numbers = map(str, (steps, trajectories, threads))
    child = subprocess.Popen([sys.executable, __file__, "--side", side, str(folder), *numbers], stdout=subprocess.PIPE)
    peaks: dict[int, float] = {}
    done = threading.Event()
    total = [0.0]

    def watch() -> None:
        while not done.wait(0.02):
            used = {}
            try:
                for process in (psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)):
                    used[process.pid] = process.memory_full_info().uss / MIB
            except psutil.Error:
                continue
            for pid, mib in used.items():
                peaks[pid] = max(peaks.get(pid, 0.0), mib)
            total[0] = max(total[0], sum(used.values()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    out = child.communicate()[0].splitlines()[-1]  # TRL prints more
    done.set()
    watcher.join()
    if child.returncode:
        raise SystemExit(f"{side}: ended with exit code {child.returncode}")
    return {**json.loads(out), "peak": max(peaks.values()), "total": total[0]}


def main(rounds: int, steps: int, threads: int) -> None:
    """Print the tables."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    trl = find_spec("trl") is not None
    sides = [s for s in SIDES if (s != "TRL" or trl) and (DEVICE == "cpu" or SIDES[s].get("ranks", 1) == 1)]
    print(
        f"AdamW in float32 on {threads} CPU threads, micro-batches of {MICRO_BATCH_TOKENS} positions, {rounds} rounds"
    )
    for name, shape in MODELS.items():
        trajectories = 64 if name == "0.4 M" else 6
        with tempfile.TemporaryDirectory() as place:
            wide = {"num_key_value_heads": 2, "intermediate_size": 2 * shape["hidden_size"]}
            model: Any = AutoModelForCausalLM.from_config(Qwen2Config(**shape, **wide, tie_word_embeddings=True))
            model.save_pretrained(place)
            del model
            train_tokenizer(["one text"], 300).save(Path(place))  # TRL's trainer asks for one
            found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
            for _ in range(rounds):
                for side in sides:
                    found[side].append(measure_side(side, Path(place), steps, trajectories, threads))
        print(f"\n{name} parameters, {trajectories} rollouts a step")
        print(
            f"{'':<30}{'tokens/s':>10}{'of the plain loop':>26}{'MiB, one':>10}{'all':>8}{'padding':>9}{'save s':>8}"
            f"{'restore s':>11}"
        )
        rates = {side: [statistics.median(f["rates"][1:]) for f in of] for side, of in found.items()}
        for side, of in found.items():
            ratios = [a / b for a, b in zip(rates[side], rates["plain loop"], strict=True)]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            checkpoint = [
                f"{statistics.median(f[key] for f in of):.2f}" if key in of[0] else "-" for key in ("save", "restore")
            ]
            print(
                f"{side:<30}{statistics.median(rates[side]):>10,.0f}{ratio:>26}{max(f['peak'] for f in of):>10,.0f}"
                f"{max(f['total'] for f in of):>8,.0f}{of[0]['waste']:>9.3f}{checkpoint[0]:>8}{checkpoint[1]:>11}",
                flush=True,
            )


def run_side(side: str, folder: Path, steps: int, trajectories: int, threads: int) -> None:
    """Measure one side in this process and print what was found."""
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    batches = [make_batch(seed, vocabulary, trajectories) for seed in range(steps)]
    if side in ("plain loop", "TRL"):
        found = (run_plain if side == "plain loop" else run_trl)(folder, batches, threads)
    else:
        found = asyncio.run(run_trainer(side, folder, batches, threads))
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        run_side(sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--steps", type=int, default=6, help="optimizer steps of each side in each round")
        parser.add_argument("--threads", type=int, default=2)
        options = parser.parse_args()
        main(options.rounds, options.steps, options.threads)
