"""What `gpu_check.sh --bare` measures: one part a process, `python scripts/gpu_parts.py PART --device cuda --out FILE`.

- `quickstart`: `examples/quickstart.yaml` with engine and trainer on the device in bfloat16, and few RL steps.
- `loss`: the fused log-probabilities beside plain ones, in bfloat16.
- `trainer`: updates of a model of 0.5 B parameters, whole (one-rank FSDP2), with LoRA, and with offload.
- `engine`: the engine `torch` with that model: tokens a second, whether trainer and engine compute the same, publishing
  by each transport, and both asleep and awake in turns.
- `context`: a GRPO and an IPA step at a context of 8,192 tokens.

Figures go to FILE as they come, a JSON pair (what, figure) a line, so that a part that fails keeps those before it. On
`--device cpu` the shapes are tiny: that shows that everything runs, and no figure says anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

REPOSITORY = Path(__file__).resolve().parents[1]
BFLOAT16 = {"dtype": "bfloat16"}
MIB = 1 << 20


@dataclass(frozen=True)
class Sizes:
    """The shapes that are measured."""

    model: dict[str, int]
    positions: int
    """Tokens of a batch of the parts `loss` and `trainer`."""
    agents: tuple[int, ...]
    """Requests that the engine has at the same time."""
    prompt: int
    new: int
    context: int
    quickstart: tuple[str, ...]


ON_GPU = Sizes(
    # The shape of Qwen2.5-0.5B.
    {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
    },
    positions=16384,
    agents=(1, 32, 256),
    prompt=512,
    new=128,
    context=8192,
    quickstart=("rl.steps=10", "eval.every=5"),
)
ON_CPU = Sizes(
    {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    },
    positions=512,
    agents=(1, 4),
    prompt=16,
    new=8,
    context=256,
    quickstart=(
        *("rl.steps=1", "rl.prompts_per_step=2", "eval.every=0", "eval.episodes=8"),
        *("sft.steps=5", "sft.demonstrations.count=40"),
    ),
)


class Check:
    """One part on one device: its sizes, a folder to work in, and the file of its figures."""

    def __init__(self, device: str, figures: Path, work: Path) -> None:
        self.device, self.work = device, work
        self.sizes = ON_GPU if device == "cuda" else ON_CPU
        self._figures = figures

    def report(self, what: str, figure: str) -> None:
        """Add a line to the table."""
        with self._figures.open("a") as stream:
            stream.write(json.dumps([what, figure]) + "\n")

    def synchronize(self) -> None:
        """Wait for what the device still computes."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def used_mib(self) -> float:
        """The device's memory in use by all processes (the ranks are processes of their own)."""
        if self.device == "cuda":
            free, total = torch.cuda.mem_get_info()
            return (total - free) / MIB
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB

    @contextmanager
    def peak_mib(self) -> Iterator[list[float]]:
        """Measure the highest use of memory in the block, at every 20 ms, into the list."""
        peak, ended = [self.used_mib()], threading.Event()

        def watch() -> None:
            while not ended.wait(0.02):
                peak[0] = max(peak[0], self.used_mib())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield peak
        finally:
            ended.set()
            watcher.join()

    def write_model(self) -> Path:
        """Write a model of this check's shape."""
        return write_model(self.work / "model", self.sizes.model)

    def trainer(self, **settings: Any) -> Any:
        """Make the trainer `torch`."""
        from ale.specs.driver import DriverContext
        from ale_trainer_torch import TorchTrainer

        return TorchTrainer(TorchTrainer.Config(device=self.device, **settings), DriverContext())


def write_model(folder: Path, shape: dict[str, int]) -> Path:
    """Write a model of random weights in bfloat16, and a tokenizer. Return the folder."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    from ale.session.tokenizer import byte_tokenizer

    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    config = Qwen2Config(**shape, tie_word_embeddings=True)
    auto.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    byte_tokenizer().save(folder)
    return folder


def machine(check: Check) -> None:
    """What is measured on."""
    from importlib.metadata import version

    if check.device == "cuda":
        asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        check.report("GPU", subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    else:
        check.report("GPU", "none: a rehearsal on a CPU with tiny shapes; its figures say nothing")
    used = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "tokenizers", "peft"))
    check.report("software", f"Python {platform.python_version()}, {used}")


def quickstart(check: Check) -> None:
    """The quickstart on the device, as a user types it."""
    from ale.store.run_store import RunStore

    ale = Path(sys.executable).with_name("ale")
    changes = [
        f"{half}.{key}" for half in ("engine", "trainer") for key in (f"device={check.device}", "dtype=bfloat16")
    ]
    if shutil.which("bwrap") is None:
        changes.append("sandbox.isolation=none")
    out = check.work / "run"
    command = [str(ale), "run", str(REPOSITORY / "examples/quickstart.yaml"), "--out", str(out)]
    began = time.perf_counter()
    subprocess.run([*command, *changes, *check.sizes.quickstart], check=True)
    check.report("whole run, bfloat16", f"{time.perf_counter() - began:.0f} s")
    with RunStore.open(out) as store:
        found = store.metrics("rl")
        for step, value in store.metrics("eval").get("success", []):
            check.report(f"success held out, step {step}", f"{value:.2f}")
    for name in ("mismatch_kl", "mismatch_mean", "rollout_s", "train_s"):
        values = [value for _, value in found.get(name, [])]
        if values:
            check.report(f"{name}, mean of {len(values)} steps", f"{np.mean(values):.4g}")


def loss(check: Check) -> None:
    """Fused and plain log-probabilities of one batch: seconds of a forward and a backward pass, memory, difference."""
    from ale_trainer_torch.fused_logprobs import token_logprobs

    shape = check.sizes.model
    torch.manual_seed(0)
    made: Any = {"device": check.device, "dtype": torch.bfloat16}
    hidden = torch.randn(check.sizes.positions // 2, shape["hidden_size"], **made).requires_grad_()
    weight = (torch.randn(shape["vocab_size"], shape["hidden_size"], **made) * shape["hidden_size"] ** -0.5).detach()
    weight.requires_grad_()
    targets = torch.randint(shape["vocab_size"], (len(hidden),), device=check.device)
    sides: dict[str, Any] = {
        "plain": lambda: torch.log_softmax((hidden @ weight.T).float(), -1).gather(-1, targets[:, None]).squeeze(-1),
        "fused": lambda: token_logprobs(hidden, weight, targets, chunk_tokens=1024)[0],
    }
    results: dict[str, tuple[Tensor, Tensor]] = {}
    for name, compute in sides.items():
        seconds = []
        with check.peak_mib() as peak:
            before = peak[0]
            for _ in range(4):
                hidden.grad = weight.grad = None
                check.synchronize()
                began = time.perf_counter()
                logprobs = compute()
                torch.autograd.backward(logprobs.mean())
                check.synchronize()
                seconds.append(time.perf_counter() - began)
            memory = torch.cuda.max_memory_allocated() / MIB if check.device == "cuda" else peak[0] - before
        assert hidden.grad is not None
        results[name] = logprobs.detach(), hidden.grad.float()
        fastest = f"{min(seconds[1:]) * 1e3:.0f} ms, peak {memory:,.0f} MiB"
        check.report(f"{name}, {len(hidden):,} positions x {shape['vocab_size']:,}", fastest)
        del logprobs
        if check.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    (one, its_gradient), (other, other_gradient) = results["plain"], results["fused"]
    gap = (its_gradient - other_gradient).abs().max() / its_gradient.abs().max()
    text = f"log-probabilities {(one - other).abs().max():.2g}, gradient {gap:.2g} of its largest"
    check.report("largest difference of the two", text)


def trajectories(check: Check, count: int, length: int) -> list[Any]:
    """Random trajectories of one sequence and eight chunks, in groups of four of which two are rewarded."""
    from ale.messages import Message
    from ale.trajectory import Chunk, Score, Sequence, Trajectory

    rng = np.random.default_rng(0)
    out = []
    for i in range(count):
        tokens = tuple(int(x) for x in rng.integers(0, check.sizes.model["vocab_size"], length))
        ends = [length * (k + 1) // 8 for k in range(8)]
        sampled = length // 16
        chunks = tuple(
            Chunk(k, 0, end - sampled, end, (-1.0,) * sampled, (0,) * sampled, "stop") for k, end in enumerate(ends)
        )
        out.append(
            Trajectory(
                id=f"t{i}",
                task_id=f"task{i // 4}",
                split="train",
                stage="rl",
                step=1,
                group=f"g{i // 4}",
                seed=0,
                policy_version=0,
                sequences=(Sequence(tokens, (Message("user", "x"),)),),
                chunks=chunks,
                reward=Score(float(i % 2), i % 2 == 1),
            )
        )
    return out


def algorithm(name: str, **settings: Any) -> Any:
    """Make an algorithm by its name in a run file."""
    from ale.registry.drivers import load_driver_class
    from ale.specs.driver import DriverContext

    driver: Any = load_driver_class("algorithm", name)
    return driver(driver.Config(**settings), DriverContext())


async def step(trainer: Any, made_by: Any, rollouts: Sequence[Any]) -> tuple[dict[str, float], float, int]:
    """Make the trainer's side of an RL step. Return its metrics, its seconds and the number of its tokens.

    The engine's log-probabilities are the trainer's own, so that no token is masked."""
    batch = made_by.batch(rollouts)
    began = time.perf_counter()
    now = await trainer.logprobs(batch)
    batch = made_by.loss.normalize(
        replace(made_by.credit(replace(batch, engine_logprobs=now), rollouts), old_logprobs=now)
    )
    metrics = await trainer.update(batch, made_by.loss, lr=1e-6)
    return metrics, time.perf_counter() - began, len(batch.token_ids)


async def trainer(check: Check) -> None:
    """Steps of GRPO on short contexts, whole, with LoRA and with offload."""
    folder = check.write_model()
    rollouts = trajectories(check, 16, check.sizes.positions // 16)
    ways: dict[str, dict[str, Any]] = {
        "one rank of FSDP2": {},
        "LoRA, rank 16": {"lora": {"rank": 16}},
        "offload": {"offload": True},
    }
    for name, settings in ways.items():
        before = check.used_mib()
        async with check.trainer(**BFLOAT16, **settings) as made:
            await made.load(folder)
            grpo = algorithm("pg", variant="grpo", group_size=4)
            with check.peak_mib() as peak:
                runs = [await step(made, grpo, rollouts) for _ in range(3)]
        metrics, seconds, tokens = min(runs, key=lambda run: run[1])
        assert np.isfinite(list(metrics.values())).all(), metrics
        text = f"{seconds:.2f} s a step, {tokens / seconds:,.0f} tokens/s, peak {peak[0] - before:,.0f} MiB"
        check.report(f"{name}, {tokens:,} tokens", text)


async def engine(check: Check) -> None:
    """The engine beside the trainer, with the same weights."""
    from ale.session.tokenizer import byte_tokenizer
    from ale.specs.driver import DriverContext
    from ale.specs.engine import GenerateRequest, Sampling
    from ale_engine_torch import TorchEngine

    sizes, folder = check.sizes, check.write_model()
    before = check.used_mib()
    config = TorchEngine.Config(
        device=check.device, dtype="bfloat16", max_batch=max(sizes.agents), max_context=sizes.prompt + sizes.new
    )
    began = time.perf_counter()
    async with TorchEngine(config, DriverContext()) as made, check.trainer(**BFLOAT16) as learner:
        await made.load_model(folder, byte_tokenizer())
        check.report("engine and trainer started, model loaded", f"{time.perf_counter() - began:.1f} s")
        random = torch.Generator().manual_seed(1)
        for agents in sizes.agents:
            prompts = torch.randint(0, sizes.model["vocab_size"], (agents, sizes.prompt), generator=random).tolist()
            asked = [GenerateRequest(tuple(p), Sampling(max_tokens=sizes.new), f"{i}") for i, p in enumerate(prompts)]
            began = time.perf_counter()
            done = await asyncio.gather(*map(made.generate, asked))
            seconds, sampled = time.perf_counter() - began, sum(len(g.token_ids) for g in done)
            memory = f"memory {check.used_mib() - before:,.0f} MiB"
            check.report(f"{agents} requests of {sizes.prompt} tokens", f"{sampled / seconds:,.0f} tokens/s, {memory}")
        await learner.load(folder)
        check.report("engine against trainer, same weights", await _mismatch(learner, asked, done))
        for transport in (each for each in learner.transports if each in made.transports):
            for _ in range(2):
                began = time.perf_counter()
                policy = await learner.publish(transport, check.work / f"published-{transport}")
                published = time.perf_counter()
                await made.load_weights(policy)
            text = f"{published - began:.2f} s, loaded in {time.perf_counter() - published:.2f} s"
            check.report(f"published by {transport}", text)
        for name, act in (("trainer asleep", learner.sleep), ("engine asleep", made.sleep)):
            began = time.perf_counter()
            await act()
            text = f"{time.perf_counter() - began:.2f} s, memory {check.used_mib() - before:,.0f} MiB"
            check.report(name, text)
        began = time.perf_counter()
        await made.wake()
        await made.load_weights(await learner.publish("folder", check.work / "published-again"))
        again = await made.generate(asked[0])
        check.report("engine awake, with new weights and a reply", f"{time.perf_counter() - began:.2f} s")
        assert again.versions[-1] == made.version, "the reply is of the weights before the sleep"


async def _mismatch(learner: Any, asked: Sequence[Any], done: Sequence[Any]) -> str:
    """Compare the log-probabilities of the sampled tokens in engine and trainer."""
    from ale_train.batches.mismatch import compare_logprobs
    from ale_train.rl.probe import pack_probe

    batch = pack_probe(asked[:8], done[:8], version=0)
    gaps = np.abs(compare_logprobs(batch, await learner.logprobs(batch), version=0).nats)
    return f"mean absolute difference {gaps.mean():.2g}, largest {gaps.max():.2g}, of {len(gaps):,} log-probabilities"


async def context(check: Check) -> None:
    """One step of GRPO and of IPA on eight trajectories that fill the context."""
    folder = check.write_model()
    rollouts = trajectories(check, 8, check.sizes.context)
    for name, settings in (("pg", {"variant": "grpo"}), ("ipa", {})):
        before = check.used_mib()
        async with check.trainer(**BFLOAT16, gradient_checkpointing=True) as made:
            await made.load(folder)
            by = algorithm(name, group_size=4, **settings)
            with check.peak_mib() as peak:
                runs = [await step(made, by, rollouts) for _ in range(2)]
        metrics, seconds, tokens = runs[-1]
        assert np.isfinite(list(metrics.values())).all(), metrics
        text = f"{seconds:.1f} s, {tokens / seconds:,.0f} tokens/s, peak {peak[0] - before:,.0f} MiB"
        check.report(f"{'GRPO' if name == 'pg' else 'IPA'} step, 8 x {check.sizes.context:,} tokens", text)


def main() -> None:
    """Run one part."""
    parts: dict[str, Any] = {
        "machine": machine, "quickstart": quickstart, "loss": loss, "trainer": trainer, "engine": engine,
        "context": context,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ale-gpu-part-") as made:
        done = parts[given.part](Check(given.device, given.out, Path(made)))
        if asyncio.iscoroutine(done):
            asyncio.run(done)


if __name__ == "__main__":
    main()
