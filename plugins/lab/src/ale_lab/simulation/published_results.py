"""Published gains of asynchronous training, simulated: which part of each comes from what, and where we disagree.

Of a published run some settings are known and others are not. `tokens` of a response (their mean) is fitted so that the
synchronous step takes as long as published; what else is assumed is said in `Published.assumed`. Then one change after
the other is made:

    overlap            some machines sample, the others train, at most one batch ahead; weights wait for what is sampled
    partial rollout    what is sampled goes on under new weights
    no log-prob pass   the engine's log-probabilities are used, so that the trainer computes none beforehand
    age                sampling may be as far ahead as published, and batches are trained on in parts
    multiplexing       engines on the trainer's machines sample while it waits (no published run here does that)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from ale_lab.simulation.engine import EngineSpeed
from ale_lab.simulation.loop import Machines, Simulation, TrainerSpeed
from ale_lab.simulation.workload import LogNormal, Workload

H20_7B = EngineSpeed(c0=0.006, c1=1.5e-4, c2=1.4e-8, prefill_tokens_s=20_000.0, kv_tokens=1_100_000.0, most=512)
"""One GPU, from its bandwidth (4.0 TB/s), its speed (148 TFLOPS) and its memory (96 GB), each used to two thirds."""
H100_7B = EngineSpeed(c0=0.0065, c1=3e-5, c2=1.7e-8, prefill_tokens_s=60_000.0, kv_tokens=900_000.0, most=512)
H100_2B = EngineSpeed(c0=0.003, c1=1e-5, c2=8.5e-9, prefill_tokens_s=120_000.0, kv_tokens=2_000_000.0, most=1024)
STEPS, WARM = 14, 4
FITS = 14
"""Halvings of the range in which the mean length is looked for."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published run: `sampling` and `training` machines (GPUs); seconds a step."""

    name: str
    source: str
    workload: Workload
    speed: EngineSpeed
    sampling: int
    training: int
    synchronous_s: float
    asynchronous_s: float
    update_s: float
    """Of the synchronous run, on all machines."""
    update_apart_s: float
    """Of the asynchronous run, on those that train."""
    logprobs: float = 1 / 3
    """The log-probabilities' part of an update; 0: there was no such pass."""
    ahead: float = 1.0
    parts: int = 1
    """Parts of a batch that are trained on and published one after the other."""
    assumed: str = ""
    curve: Mapping[float, float] = field(default_factory=dict)
    """Seconds a step by `ahead`."""
    only_those_sample: bool = False
    """Whether the machines that train do not sample in the synchronous run either."""


def math_problems(prompts: int, n: int, most: float, cv: float) -> Workload:
    """Return groups of one long answer each, without tools."""
    return Workload(
        prompts=prompts,
        group_size=n,
        prompt_tokens=300.0,
        turns=LogNormal(1),
        tokens=LogNormal(most / 8, cv, most),
        tool_s=LogNormal(0),
        answer_tokens=0.0,
        start_s=0.0,
        reward_s=0.0,
    )


VERL = Published(
    name="verl, fully asynchronous",
    source="docs/advance/fully_async.md",
    workload=math_problems(512, 16, 28_000, 1.0),
    speed=H20_7B,
    sampling=64,
    training=64,
    synchronous_s=356.0,
    asynchronous_s=151.0,
    update_s=114.0,
    update_apart_s=113.0,
    logprobs=54 / 114,
    ahead=4 * 1.5 - 1,
    parts=4,
    assumed="cv of lengths 1; a mini-batch of 128 prompts is a batch of ours",
    curve={4 * (1 + threshold) - 1: s for threshold, s in {0.0: 231.0, 0.1: 171.0, 0.3: 146.0, 0.5: 151.0}.items()},
)
AREAL_SMALL = Published(
    name="AReaL 1.5B",
    source="41.0 to 14.8 h for 1,000 steps, 128 GPUs",
    workload=math_problems(512, 16, 27_000, 1.0),
    speed=H100_2B,
    sampling=96,
    training=32,
    synchronous_s=147.6,
    asynchronous_s=53.3,
    update_s=12.5,
    update_apart_s=50.0,
    ahead=4.0,
    assumed="three quarters sample; an update takes 50 s on 32 GPUs, 12.5 s on 128; cv 1",
)
AREAL_LARGE = Published(
    name="AReaL 7B",
    source="57.7 to 25.4 h for 1,000 steps, 192 GPUs",
    workload=math_problems(512, 16, 27_000, 1.0),
    speed=H100_7B,
    sampling=144,
    training=48,
    synchronous_s=207.7,
    asynchronous_s=91.4,
    update_s=21.0,
    update_apart_s=84.0,
    ahead=4.0,
    assumed="three quarters sample; an update takes 84 s on 48 GPUs, 21 s on 192; cv 1",
)
MARIN = Published(
    name="marin, ages 0 to 4",
    source="#8955, 100 updates on 32 + 8 H100",
    workload=math_problems(256, 16, 4_000, 1.0),
    speed=H100_7B,
    sampling=32,
    training=8,
    synchronous_s=62.35,
    asynchronous_s=29.42,
    update_s=15.0,
    update_apart_s=15.0,
    logprobs=0.0,
    ahead=4.0,
    assumed="256 groups of 16; an update takes 15 s, also in the synchronous run, which samples on the 32; cv 1",
    curve={1.0: 43.6, 2.0: 35.44, 3.0: 31.42, 4.0: 29.42},
    only_those_sample=True,
)
ROLL_RLVR = Published(
    name="ROLL Flash, RLVR",
    source="2.24 times, arXiv 2510.11345",
    workload=math_problems(256, 16, 32_000, 1.0),
    speed=H100_7B,
    sampling=64,
    training=64,
    synchronous_s=300.0,
    asynchronous_s=300.0 / 2.24,
    update_s=60.0,
    update_apart_s=120.0,
    ahead=2.0,
    assumed="everything but the ratio: 300 s a step, 64 + 64 GPUs, an update of 120 s on half of them",
)
ROLL_AGENTIC = Published(
    name="ROLL Flash, agentic",
    source="2.72 times, arXiv 2510.11345",
    workload=Workload(
        prompts=64,
        group_size=16,
        prompt_tokens=1000.0,
        turns=LogNormal(20, 0.5, 50),
        tokens=LogNormal(300, 1, 2000),
        tool_s=LogNormal(5, 1.5, 120),
        answer_tokens=100,
        start_s=5,
        reward_s=1,
    ),
    speed=H100_7B,
    sampling=16,
    training=16,
    synchronous_s=500.0,
    asynchronous_s=500.0 / 2.72,
    update_s=60.0,
    update_apart_s=120.0,
    ahead=2.0,
    assumed="everything but the ratio: 500 s a step, 20 turns, tools of 5 s (cv 1.5), an update of 120 s",
)
ALL = (VERL, AREAL_SMALL, AREAL_LARGE, MARIN, ROLL_RLVR, ROLL_AGENTIC)


def simulate_step(p: Published, ahead: float | None = None, logprobs: float | None = None, **changes: Any) -> float:
    """Return the mean seconds of a published step, which is `p.parts` of the simulator's; synchronous without `ahead`.

    `async_ratio` is the least whole number above `ahead`, so that the tail has up to a step of time."""
    machines = Machines(p.sampling, 0 if p.only_those_sample else p.training, p.speed, 1.0, 5.0)
    update, parts = (p.update_s, 1) if ahead is None else (p.update_apart_s, p.parts)
    workload = replace(p.workload, prompts=p.workload.prompts // parts)
    trainer = TrainerSpeed(update / parts, 0.0, p.logprobs if logprobs is None else logprobs)
    steps, first = (3, 0) if ahead is None else (STEPS * parts, WARM * parts)
    ratio = 0 if ahead is None else math.floor(ahead) + 1
    ends = [
        step.end
        for step in Simulation(
            workload=workload,
            machines=machines,
            trainer=trainer,
            steps_wanted=steps,
            async_ratio=ratio,
            ahead=ahead or 0,
            **changes,
        ).run()
    ]
    return (ends[-1] - (ends[first - 1] if first else 0.0)) / (steps - first) * parts


def fitted(p: Published) -> Published:
    """Return it with the mean length of answers (of a turn) with which its synchronous step takes as published."""
    low, high = 1.0, p.workload.tokens.most
    for _ in range(FITS):
        mean = (low + high) / 2
        p = replace(p, workload=replace(p.workload, tokens=replace(p.workload.tokens, mean=mean)))
        low, high = (mean, high) if simulate_step(p) < p.synchronous_s else (low, mean)
    return p


def ladder(p: Published) -> dict[str, float]:
    """Return the seconds of a step after each change; `p` is fitted."""
    whole = replace(p, parts=1)
    return {
        "synchronous": simulate_step(p),
        "overlap": simulate_step(whole, 1.0, under_way="drain"),
        "partial rollout": simulate_step(whole, 1.0),
        "no log-prob pass": simulate_step(whole, 1.0, logprobs=0.0),
        "age": simulate_step(p, p.ahead, logprobs=0.0),
        "multiplexing": simulate_step(p, p.ahead, logprobs=0.0, multiplexed=True),
    }


def tables() -> str:
    """Return two Markdown tables: what each change brings (gain: simulated, published), and the curves over `ahead`."""
    found = [fitted(p) for p in ALL]
    steps = {p.name: ladder(p) for p in found}
    names = list(next(iter(steps.values())))
    lines = [
        f"| seconds a step | published | gain | simulated: {' | '.join(names)} |",
        "| --- " * (len(names) + 3) + "|",
    ]
    for p in found:
        times = steps[p.name]
        gain, theirs = p.synchronous_s / times["age"], p.synchronous_s / p.asynchronous_s
        cells = [p.name, f"{p.synchronous_s:.0f} -> {p.asynchronous_s:.0f}", f"{gain:.2f} ({theirs:.2f})"]
        lines.append(f"| {' | '.join([*cells, *(f'{seconds:.0f}' for seconds in times.values())])} |")
    lines += ["", "| batches ahead | published | simulated | difference |", "| --- | --- | --- | --- |"]
    errors = []
    for p in found:
        for ahead, seconds in p.curve.items():
            simulated = simulate_step(p, ahead, logprobs=0.0)
            errors.append(abs(simulated / seconds - 1))
            off = f"{simulated / seconds - 1:+.0%}"
            lines.append(f"| {p.name}: {ahead:g} | {seconds:.0f} s | {simulated:.0f} s | {off} |")
    lines += ["", f"Mean difference of the curves: {fmean(errors):.0%}.", "", "Assumed:", ""]
    lines += [f"- {p.name} ({p.source}): {p.assumed}; fitted mean {p.workload.tokens.mean:.0f} tokens" for p in found]
    return "\n".join(lines) + "\n"
