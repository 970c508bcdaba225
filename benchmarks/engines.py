"""Engines side by side: tokens a second of agents' conversations, alone and through ALE's sessions, and updates.

Each agent plays `TURNS` turns: the context grows by an observation of some `OBSERVED` tokens, and `NEW` tokens are
sampled, with the whole conversation before them as the prompt. *Alone*, the contexts are lists of tokens, as long as
those of the chat template, that go straight to the server's own client, without the pool; *ours* are messages through a
`RecordedSession` and the whole engine. Both sides alternate, on the same server, and each number of agents has a
warm-up round; a ratio is ours divided by alone of the same round.

An update of the weights is compared with its two parts: writing them once into shared memory, and the server's loading
of that folder with our proof left out.

    python benchmarks/engines.py [--engines torch,vllm,sglang] [--models 0.4M,52M] [--agents 1,8,32,128] [--rounds 3]

Engines whose environment is not installed (`ale engine install`) are left out, with a sentence.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ale.errors import AleError
from ale.messages import Message
from ale.registry.drivers import load_driver_class
from ale.registry.hooks import Hooks
from ale.session.session import Sessions
from ale.session.tokenizer import ChatTokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import GenerateRequest, InferenceEngine, MemoryTicket, PolicyVersion, Sampling
from ale_engines.weights.shared_memory import make_weights_folder, write_tensors
from ale_train.config.scratch_model import ScratchModel
from ale_train.models.scratch import write_scratch_model

TURNS, NEW, OBSERVED, MAX_CONTEXT = 4, 64, 80, 1024
MODELS = {
    "0.4M": ScratchModel(hidden_size=128, layers=2, heads=2, kv_heads=2, vocab_size=720, max_length=MAX_CONTEXT),
    "52M": ScratchModel(hidden_size=768, layers=7, heads=12, kv_heads=4, vocab_size=720, max_length=MAX_CONTEXT),
}
TEXT = "the quick brown fox jumps over the lazy dog and lists files with ls -l, then reads them with cat. "


@dataclass
class Load:
    """What the agents of one side do."""

    engine: InferenceEngine
    """The whole engine."""
    server: InferenceEngine
    """What samples, without the pool: the same object where an engine has none."""
    tokenizer: ChatTokenizer
    observation: str

    async def both(self, agents: int, round_: int) -> tuple[float, float]:
        """Play one round, alone and ours; which is first changes from round to round."""
        if round_ % 2:
            ours = await self.ours(agents, round_)
            return await self.alone(agents, round_), ours
        return await self.alone(agents, round_), await self.ours(agents, round_)

    async def alone(self, agents: int, round_: int) -> float:
        """Play with lists of tokens; returns sampled tokens a second."""
        played = [Message("user", self.observation), Message("assistant", "done"), Message("user", self.observation)]
        between = self.tokenizer.encode(self.tokenizer.continuation(played, 2) or "")

        async def play(agent: int) -> None:
            name = f"{round_} {agent} alone"
            asked = self.tokenizer.render([Message("user", f"{name} {self.observation}")], prompt=True)
            context = self.tokenizer.encode(asked)
            for turn in range(TURNS):
                request = GenerateRequest(tuple(context), self._sampling(), name, turn)
                context += [*(await self.server.generate(request)).token_ids, *between]

        return await self._rate(play, agents)

    async def ours(self, agents: int, round_: int) -> float:
        """Play with messages, through sessions; returns sampled tokens a second."""
        sessions = Sessions(self.tokenizer, self.engine, Hooks())

        async def play(agent: int) -> None:
            session = sessions.open(
                f"ours-{round_}-{agent}", self._sampling(), max_calls=TURNS, max_context=MAX_CONTEXT
            )
            messages = [Message("user", f"{round_} {agent} ours {self.observation}")]
            for _ in range(TURNS):
                messages += [(await session.chat(messages)).message, Message("user", self.observation)]
            session.close()

        return await self._rate(play, agents)

    def _sampling(self) -> Sampling:
        # A stop token that an untrained policy hardly samples: answers have the same length on both sides.
        return Sampling(max_tokens=NEW, stop_token_ids=self.tokenizer.stop_token_ids[:1])

    async def _rate(self, play: Callable[[int], Awaitable[None]], agents: int) -> float:
        began, before = time.perf_counter(), self.server.metrics()["sampled_tokens"]
        await asyncio.gather(*(play(agent) for agent in range(agents)))
        return (self.server.metrics()["sampled_tokens"] - before) / (time.perf_counter() - began)


async def measure(name: str, model: str, agents: list[int], rounds: int, settings: dict[str, Any]) -> None:
    """Print the rows of one engine and model."""
    cls = load_driver_class("engine", name)
    config = cls.Config.model_validate({"max_batch": max(64, *agents), "max_context": MAX_CONTEXT, **settings})
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_scratch_model(MODELS[model], folder, [TEXT * 20], seed=1)
        tokenizer = ChatTokenizer.load(folder)
        observation = TEXT * 4
        observation = tokenizer.decode(tokenizer.encode(observation)[:OBSERVED])
        async with cls(config, DriverContext()) as driver:
            engine = cast(InferenceEngine, driver)
            await engine.load_model(folder, tokenizer)
            replicas: list[InferenceEngine] = list(getattr(engine, "replicas", ()))
            load = Load(engine, replicas[0] if len(replicas) == 1 else engine, tokenizer, observation)
            for count in agents:
                await load.ours(count, -1)
                rows = [await load.both(count, i) for i in range(rounds)]
                ratios = sorted(ours / alone for alone, ours in rows)
                alone, ours = (statistics.median(side) for side in zip(*rows, strict=True))
                print(
                    f"{name:<8}{model:<7}{count:>6}{alone:>11,.0f}{ours:>11,.0f}{statistics.median(ratios):>8.2f}"
                    f"   {ratios[0]:.2f} to {ratios[-1]:.2f}",
                    flush=True,
                )
            if hasattr(load.server, "send_folder"):
                await measure_updates(name, model, load, folder, rounds)


async def measure_updates(name: str, model: str, load: Load, folder: Path, rounds: int) -> None:
    """Print what an update from the trainer's memory takes beside its parts."""
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    server = cast(Any, load.server)
    shared = make_weights_folder(size)
    rows = []
    try:
        for i in range(rounds + 1):  # the first one warms up
            began = time.perf_counter()
            await asyncio.to_thread(write_tensors, weights, shared)
            copied = time.perf_counter()
            await server.send_folder(shared, 2 * i + 1)
            loaded = time.perf_counter()
            await load.engine.load_weights(PolicyVersion(2 * i + 2, MemoryTicket(weights)))
            rows.append((copied - began, loaded - copied, time.perf_counter() - loaded))
    finally:
        for file in shared.iterdir():
            file.unlink()
        shared.rmdir()
    copy, server_s, whole = (statistics.median(column) * 1e3 for column in zip(*rows[1:], strict=True))
    ratios = sorted(total / (a + b) for a, b, total in rows[1:])
    print(
        f"{name:<8}{model:<7}update of {size / 2**20:.1f} MiB: copy {copy:.1f} ms, server {server_s:.1f} ms, "
        f"whole {whole:.1f} ms: {statistics.median(ratios):.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="torch,vllm,sglang")
    parser.add_argument("--models", default="0.4M,52M")
    parser.add_argument("--agents", default="1,8,32,128")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each engine")
    given = parser.parse_args()
    print(f"{'engine':<8}{'model':<7}{'agents':>6}{'alone':>11}{'ours':>11}{'ratio':>8}   spread   (sampled tokens/s)")
    for model in given.models.split(","):
        for name in given.engines.split(","):
            agents = [int(count) for count in given.agents.split(",")]
            try:
                asyncio.run(measure(name, model, agents, given.rounds, {"threads": given.threads}))
            except AleError as error:
                print(f"{name:<8}{model:<7}left out: {error}", flush=True)


if __name__ == "__main__":
    main()
