"""Compares the fused log-probabilities of the trainer `torch` with plain ones: time and peak memory of forward and
backward.

Plain is what one writes first: logits of all positions, `log_softmax`, `gather`. Fused is
`ale_trainer_torch.fused_logprobs`: the output layer in chunks of positions, logits recomputed in the backward pass.
Both make log-probabilities of random targets and the gradients of hidden states and weights, in float32. Each side runs
in a process of its own, so that they share no high-water mark; memory is what the peak is above the state just before
(inputs made, torch warmed up, no gradients): resident memory on a CPU, allocated memory on a GPU. Seconds are wall
time, the median of the repeats and their spread.

The last shape is only measured fused: its logits would be 19.7 GB, and each copy of them as much again.
The whole benchmark takes under two minutes on two cores.

    python benchmarks/loss.py
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from ale_trainer_torch.fused_logprobs import token_logprobs

# positions, vocabulary, width, chunk, repeats, whether plain fits
SHAPES = (
    (2048, 32_768, 256, 512, 5, True),
    (4096, 150_000, 256, 512, 2, True),
    (32_768, 150_000, 32, 1024, 1, False),
)
MIB = 1 << 20


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute log-probabilities from the whole table of logits."""
    return torch.log_softmax(hidden @ weight.T, -1).gather(-1, targets[:, None]).squeeze(-1)


def used_mib(device: str) -> float:
    """Return the memory in use."""
    if device == "cuda":
        return torch.cuda.memory_allocated() / MIB
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MIB


def peak_mib(device: str) -> float:
    """Return the highest memory use so far."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / MIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(side: str, positions: int, vocabulary: int, width: int, chunk: int, repeats: int) -> None:
    """Print the seconds of each repeat and the peak (MiB) above the start, as JSON."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    hidden = torch.randn(positions, width, device=device, requires_grad=True)
    weight = (torch.randn(vocabulary, width, device=device) * width**-0.5).requires_grad_()
    targets = torch.randint(vocabulary, (positions,), device=device)

    def run(count: int) -> float:
        hidden.grad = weight.grad = None
        began = time.perf_counter()
        if side == "plain":
            logprobs = plain(hidden[:count], weight, targets[:count])
        else:
            logprobs, _ = token_logprobs(hidden[:count], weight, targets[:count], chunk_tokens=chunk)
        torch.autograd.backward(logprobs.mean())
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    run(8)
    hidden.grad = weight.grad = None  # the passes that are measured make them anew
    before = used_mib(device)
    seconds = [run(positions) for _ in range(repeats)]
    print(json.dumps({"seconds": seconds, "peak": peak_mib(device) - before}))


def measure_in_own_process(side: str, shape: tuple[int, int, int, int], repeats: int) -> tuple[list[float], float]:
    """Measure one side in its own process: seconds and peak (MiB)."""
    command = [sys.executable, str(Path(__file__)), side, *map(str, shape), str(repeats)]
    out = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return out["seconds"], out["peak"]


def show(seconds: list[float]) -> str:
    """Format median and range of seconds."""
    if len(seconds) == 1:
        return f"{seconds[0]:.2f}"
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"


def main() -> None:
    """Print the table."""
    print(f"one forward and backward pass on {'a GPU' if torch.cuda.is_available() else 'the CPU'}")
    print(
        f"{'positions x vocabulary':<24}{'chunk':>6}{'plain s':>20}{'fused s':>20}"
        f"{'plain MiB':>11}{'fused MiB':>11}{'less':>7}"
    )
    for positions, vocabulary, width, chunk, repeats, fits in SHAPES:
        shape = (positions, vocabulary, width, chunk)
        seconds, peak = measure_in_own_process("fused", shape, repeats)
        theirs, theirs_peak = measure_in_own_process("plain", shape, repeats) if fits else ([], 0.0)
        print(
            f"{f'{positions:,} x {vocabulary:,}':<24}{chunk:>6}{show(theirs) if fits else '-':>20}{show(seconds):>20}"
            f"{f'{theirs_peak:,.0f}' if fits else '-':>11}{peak:>11,.0f}"
            f"{f'{theirs_peak / peak:.1f}x' if fits else '-':>7}",
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], *map(int, sys.argv[2:]))
    else:
        main()
