"""The simulated loop: episodes on simulated engines, the real sample buffer, a trainer that takes time.

Three ways to use the machines:

    synchronous    engines and trainer take turns on all of them (`async_ratio` 0)
    asynchronous   some only sample, some only train
    multiplexed    asynchronous, and engines on the trainer's machines sample while it waits
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ale_lab.simulation import FORBID
from ale_lab.simulation.engine import EngineSpeed, SimulatedEngine, Turn
from ale_lab.simulation.event_queue import EventQueue
from ale_lab.simulation.workload import Episode, Episodes
from ale_train.config.rl import RLConfig
from ale_train.rl.multiplexing import Multiplexing
from ale_train.rl.sample_buffer import OpenGroup, SampleBuffer

LOAD_BOUND, CHOICES = 1.25, 8
"""A turn goes to the engine that has its prefix, unless that has so many times the turns of the mean engine."""


@dataclass(frozen=True, slots=True)
class TrainerSpeed:
    """An update of so many tokens takes `fixed_s + seconds_a_token * tokens`; `logprobs` is the share of that which the
    log-probabilities take beforehand (0: there is no such pass)."""

    __pydantic_config__ = FORBID
    fixed_s: float
    seconds_a_token: float
    logprobs: float = 1 / 3

    def seconds(self, tokens: float) -> tuple[float, float]:
        """Return the seconds of log-probabilities and of the update."""
        update = self.fixed_s + self.seconds_a_token * tokens
        return self.logprobs * update, update


@dataclass(frozen=True, slots=True)
class Machines:
    """`engines` sample, `lent` more are on the trainer's machines; `switch_s` for these to change sides; `publish_s` to
    load new weights."""

    __pydantic_config__ = FORBID
    engines: int
    lent: int = 0
    speed: EngineSpeed = field(default=EngineSpeed())
    publish_s: float = 1.0
    switch_s: float = 5.0
    concurrency: float = math.inf
    """How many episodes may run at once."""


@dataclass(slots=True)
class Step:
    """When a step ended, how long the trainer waited for it, and how old its groups were in versions."""

    end: float
    wait_s: float
    ages: list[int]


@dataclass(slots=True)
class Group:
    """A simulated group: its episodes that have not ended, the sampled tokens, the version at its first episode."""

    left: int
    version: int
    tokens: float = 0.0
    begun: int = 0


@dataclass
class Simulation:
    """Run it with `run`; `steps`, `spans` (of the trainer) and `loads` (turns at the engines) then hold the result."""

    workload: Episodes
    machines: Machines
    trainer: TrainerSpeed
    steps_wanted: int
    async_ratio: int = 0
    ahead: float | None = None
    """As in a run file; here it may be a part of a batch."""
    multiplexed: bool = False
    under_way: Literal["go_on", "again", "drain"] = "go_on"
    """What becomes of a turn that is sampled when new weights come: it goes on under them, it is sampled again from its
    beginning, or the weights wait until it is done."""
    seed: int = 0
    steps: list[Step] = field(default_factory=list)
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    loads: list[tuple[float, int]] = field(default_factory=list)

    def run(self) -> list[Step]:
        """Simulate all steps."""
        w, m = self.workload, self.machines
        self._random = random.Random(self.seed)
        self._events = EventQueue()
        ahead = RLConfig(async_ratio=self.async_ratio).batches_ahead if self.ahead is None else self.ahead
        self._buffer: SampleBuffer[Group] = SampleBuffer(
            w.prompts, self.async_ratio, ahead, float("inf"), lambda: self._events.now
        )
        lent = m.lent if self.multiplexed or not self.async_ratio else 0
        self._own = [SimulatedEngine(self._events, m.speed) for _ in range(m.engines)]
        self._lent = [SimulatedEngine(self._events, m.speed) for _ in range(lent)]
        self._serve(self.engines)
        self._policy = Multiplexing(w.prompts, min(0.9, lent / max(1, m.engines + lent)))
        self._groups: dict[int, Group] = {}
        self._version = self._ordinal = self._running = self._turns = 0
        self._queue: deque[int] = deque()
        self._training = False
        self._waiting_since = self._back_at = 0.0
        self._finished = 0
        self._admit()
        self._events.run(lambda: len(self.steps) >= self.steps_wanted)
        return self.steps

    @property
    def engines(self) -> list[SimulatedEngine]:
        """All engines, lent ones too."""
        return [*self._own, *self._lent]

    # --- producing

    def _admit(self) -> None:
        last = self.steps_wanted * self.workload.prompts
        while self._buffer.room > 0 and self._ordinal < last:
            ordinal, self._ordinal = self._ordinal, self._ordinal + 1
            self._buffer.admit(ordinal, self._version)
            self._groups[ordinal] = Group(self.workload.group_size, self._version)
            self._queue.extend([ordinal] * self.workload.group_size)
        self._begin_episodes()

    def _begin_episodes(self) -> None:
        """Begin as many episodes as may run at once."""
        while self._queue and self._running < self.machines.concurrency:
            ordinal = self._queue.popleft()
            self._running += 1
            step, nth = divmod(ordinal, self.workload.prompts)
            group = self._groups[ordinal]
            place = (nth * self.workload.group_size + group.begun) / (self.workload.prompts * self.workload.group_size)
            group.begun += 1
            episode = self.workload.draw(self._random, step, place)
            self._events.after(episode.start_s, self._play(ordinal, episode))

    def _play(self, ordinal: int, episode: Episode) -> Callable[[], None]:
        """Return the function that begins the first turn of an episode."""
        group = self._groups[ordinal]
        context, computed = episode.prompt_tokens, 0.0
        home: SimulatedEngine | None = None

        def ask(turn: int) -> None:
            nonlocal home, computed
            mean = self._turns / len(self._serving)
            if home is None or not home.serving or home.load > LOAD_BOUND * (mean + 1):
                home, computed = self._least_loaded(self._serving), 0.0
            tokens = episode.turns[turn][0]
            home.add(Turn(context, context - computed, tokens, lambda: answered(turn, tokens)))
            self._note_turns(1)

        def answered(turn: int, tokens: float) -> None:
            nonlocal context, computed
            self._note_turns(-1)
            group.tokens += tokens
            context += tokens
            computed = context
            context += episode.answer_tokens
            if turn + 1 < len(episode.turns):
                self._events.after(episode.turns[turn][1], lambda: ask(turn + 1))
            else:
                self._events.after(episode.turns[turn][1] + episode.reward_s, lambda: self._ended(ordinal))

        return lambda: ask(0)

    def _ended(self, ordinal: int) -> None:
        self._running -= 1
        self._begin_episodes()
        group = self._groups[ordinal]
        group.left -= 1
        if group.left == 0:
            self._buffer.finish(ordinal, [group], group.version)
            self._finished += 1
            self._train()
            if self._is_lending and not self._training and self._worth_taking_back():
                self._take_back()

    def _least_loaded(self, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """Return the engine with the fewest turns; of many engines, of a few that chance chooses."""
        some = engines if len(engines) <= CHOICES else self._random.sample(engines, CHOICES)
        return min(some, key=lambda engine: engine.load)

    def _note_turns(self, more: int) -> None:
        self._turns += more
        self.loads.append((self._events.now, self._turns))

    # --- training

    def _train(self) -> None:
        """Begin a step if its batch is there."""
        batch = None if self._training else self._buffer.take(self._version)
        if batch is None:
            return
        self._training = True
        now = self._events.now
        self._span("wait_data", self._waiting_since, now)
        if self._is_lending:
            self._take_back()
        switch = max(0.0, self._back_at - now)
        tokens = sum(group.rollouts[0].tokens for group in batch if group.rollouts)
        logprobs, update = self.trainer.seconds(tokens)
        self._span("switch", now, now + switch)
        self._span("logprobs", now + switch, now + switch + logprobs)
        self._span("update", now + switch + logprobs, now + switch + logprobs + update)
        ages = [self._version - group.version for group in batch]
        step = Step(0.0, now - self._waiting_since, ages)
        publish = self._drain if self.under_way == "drain" else self._publish
        self._events.after(switch + logprobs + update, lambda: publish(batch, step))

    @property
    def _is_lending(self) -> bool:
        return bool(self._lent) and self._lent[0].serving

    def _take_back(self) -> None:
        """Let the lent engines leave: what they sample goes on elsewhere."""
        self._back_at = self._events.now + self.machines.switch_s
        if not self.async_ratio:
            return  # no turn is under way
        self._serve(self._own)
        for engine in self._lent:
            for turn in engine.evict():
                self._least_loaded(self._own).add(turn)

    def _worth_taking_back(self) -> bool:
        waited = self._events.now - self._waiting_since
        soon = int(self._finished / max(1e-9, waited) * self.machines.switch_s)
        there = sum(engine.kv_tokens for engine in self.engines)
        return self._policy.shrink(self._buffer.ready, soon, there, len(self._own) * self.machines.speed.kv_tokens)

    def _drain(self, batch: list[OpenGroup[Group]], step: Step) -> None:
        """Let no turn begin, and publish when those under way are done."""
        began, left = self._events.now, len(self._serving)

        def drained() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._span("drain", began, self._events.now)
                self._publish(batch, step)

        for engine in self._serving:
            engine.drain(drained)

    def _publish(self, batch: list[OpenGroup[Group]], step: Step) -> None:
        for engine in self._serving:
            engine.pause()
            if self.under_way == "again":
                self._begin_again(engine)
        seconds = self.machines.publish_s
        self._span("publish", self._events.now, self._events.now + seconds)
        self._events.after(seconds, lambda: self._published(batch, step))

    def _begin_again(self, engine: SimulatedEngine) -> None:
        for turn in engine.evict(whole=True):
            engine.add(turn)

    def _published(self, batch: list[OpenGroup[Group]], step: Step) -> None:
        self._version += 1
        self._buffer.trained()
        for group in batch:
            del self._groups[group.ordinal]
        for engine in self._serving:
            engine.resume()
        step.end = self._events.now
        self.steps.append(step)
        self._training, self._waiting_since, self._finished = False, self._events.now, 0
        lend = bool(self._lent) and not self._is_lending and self._worth_lending()  # asked after each step
        self._admit()
        self._train()
        if lend and not self._training:
            self._events.after(self.machines.switch_s, self._lend)

    def _worth_lending(self) -> bool:
        return self._policy.expand(self._buffer.ready, self.steps[-1].wait_s, 2 * self.machines.switch_s)

    def _serve(self, engines: list[SimulatedEngine]) -> None:
        """From now on these engines get turns."""
        self._serving = engines
        for engine in self.engines:
            engine.serving = False
        for engine in engines:
            engine.serving = True

    def _lend(self) -> None:
        if not self._training:
            self._serve(self.engines)
            for engine in self._serving:
                engine.resume()

    def _span(self, state: str, began: float, ended: float) -> None:
        if began < ended:
            self.spans.append((state, began, ended))
