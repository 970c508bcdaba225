"""The simulator: its engine against sums by hand, its loop against the bounds of the real buffer."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ale.errors import ConfigError
from ale.store.run_store import RunStore
from ale.trajectory import Chunk, Trajectory
from ale_lab.commands import simulate
from ale_lab.simulation.calibrate import engine_speed, episode, predict
from ale_lab.simulation.engine import EngineSpeed, SimulatedEngine, Turn
from ale_lab.simulation.event_queue import EventQueue
from ale_lab.simulation.loop import Machines, Simulation, TrainerSpeed
from ale_lab.simulation.machine_scenarios import read_scenario
from ale_lab.simulation.published_results import MARIN, fitted, ladder
from ale_lab.simulation.workload import Episode, LogNormal, Measured, Workload
from ale_train.rl.multiplexing import Multiplexing

NO_PREFILL = float("inf")


def ends(speed: EngineSpeed, *turns: tuple[float, float]) -> list[float]:
    """When turns end that come at a time and have so many tokens."""
    events, found = EventQueue(), [0.0] * len(turns)
    engine = SimulatedEngine(events, speed)
    for i, (at, tokens) in enumerate(turns):

        def done(i: int = i) -> None:
            found[i] = events.now

        events.after(at, lambda tokens=tokens, done=done: engine.add(Turn(0, 0, tokens, done)))  # type: ignore[misc]
    events.run(lambda: all(found))
    return found


def test_a_turn_alone_takes_its_tokens_and_two_at_once_slow_each_other() -> None:
    speed = EngineSpeed(1.0, 0.5, 0.0, NO_PREFILL)
    assert ends(speed, (0, 10)) == [pytest.approx(15)]
    assert ends(speed, (0, 10), (0, 10)) == [pytest.approx(20), pytest.approx(20)]
    # 6 s alone are 4 tokens; 6 more with the other take 12 s; the other has 4 left, alone.
    assert ends(speed, (0, 10), (6, 10)) == [pytest.approx(18), pytest.approx(24)]


def test_what_does_not_fit_the_memory_waits_for_its_turn() -> None:
    speed = EngineSpeed(1.0, 0.0, 0.0, NO_PREFILL, kv_tokens=15)
    assert ends(speed, (0, 10), (0, 10)) == [pytest.approx(10), pytest.approx(20)]


def test_a_turn_that_is_given_up_goes_on_elsewhere_where_it_was() -> None:
    events, found = EventQueue(), []
    one, other = (SimulatedEngine(events, EngineSpeed(1.0, 0.0, 0.0, 100.0)) for _ in range(2))
    one.add(Turn(50, 0, 10, lambda: found.append(events.now)))

    def move() -> None:
        (turn,) = one.evict()
        assert (turn.context, turn.new, turn.tokens) == (54, 54, 6)
        other.add(turn)

    events.after(4, move)
    events.run(lambda: bool(found))
    assert found == [pytest.approx(4 + 54 / 100 + 6)]
    assert one.tokens + other.tokens == pytest.approx(10 + 0.54)


def test_a_synchronous_step_is_the_longest_episode_then_the_trainer() -> None:
    workload = Workload(2, 2, 0.0, LogNormal(2), LogNormal(10), LogNormal(3), 0.0, 1.0, 4.0)
    machines = Machines(4, 0, EngineSpeed(1.0, 0.0, 0.0, NO_PREFILL), 2.0, 5.0)
    steps = Simulation(workload, machines, TrainerSpeed(6.0, 0.1, 0.5), 3).run()
    # start 1, two turns of 10 with a tool of 3 after each, reward 4; 80 tokens cost 6 + 8, and half of that before
    assert [step.wait_s for step in steps] == [pytest.approx(1 + 26 + 4)] * 3
    assert [step.end for step in steps] == pytest.approx([(31 + 21 + 2) * n for n in (1, 2, 3)])


@given(
    st.integers(0, 4), st.integers(0, 4), st.booleans(),
    st.sampled_from(["go_on", "again", "drain"]), st.integers(0, 99), st.floats(0.1, 3),
    st.sampled_from([4.0, 40.0, float("inf")]),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_the_bound_holds_and_every_group_is_trained_on_once(
    ratio: int, ahead: int, multiplexed: bool, under_way: Any, seed: int, cv: float, concurrency: float
) -> None:
    workload = Workload(3, 2, 20.0, LogNormal(3, cv), LogNormal(30, cv, 300), LogNormal(2, cv), fault_rate=0.1)
    machines = Machines(2, 1, EngineSpeed(kv_tokens=3000), 0.5, 1.0, concurrency)
    simulation = Simulation(
        workload, machines, TrainerSpeed(1.0, 1e-3), 6, ratio, min(ahead, ratio), multiplexed, under_way, seed
    )
    steps = simulation.run()
    assert [len(step.ages) for step in steps] == [3] * 6
    assert all(0 <= age <= ratio for step in steps for age in step.ages)
    assert steps[-1].end == max(step.end for step in steps)
    spans = sorted(simulation.spans, key=lambda span: span[1:])
    assert all(before[2] <= after[1] + 1e-6 for before, after in pairwise(spans))
    assert sum(ended - began for _, began, ended in spans) == pytest.approx(steps[-1].end), "a trainer without gaps"


def test_overlap_helps_and_staleness_is_as_little_says() -> None:
    workload = Workload(8, 4, tokens=LogNormal(300, 1, 2000), tool_s=LogNormal(5, 2, 200))
    trainer = TrainerSpeed(30.0, 1e-4)
    both = [Simulation(workload, Machines(4), trainer, 20, ratio).run() for ratio in (0, 2)]
    assert both[1][-1].end < 0.75 * both[0][-1].end
    ages = [age for step in both[1][5:] for age in step.ages]
    assert sum(ages) / len(ages) == pytest.approx(1, abs=0.1), "open / B - 1"


def test_machines_are_lent_where_waiting_costs_more_and_taken_back_once_the_batch_is_there() -> None:
    policy = Multiplexing(8, share=0.5)
    assert not policy.expand(0, waited_s=10, cost_s=12), "without lending it would be 20 s, as half of the engines go"
    assert not policy.expand(0, waited_s=20, cost_s=12)
    assert policy.expand(0, waited_s=40, cost_s=12), "it was more"
    assert not policy.expand(8, waited_s=100, cost_s=12), "the next batch is there already"
    assert policy.shrink(ready=6, soon=2, kv_in_flight=10, kv_of_rest=20)
    assert not policy.shrink(ready=6, soon=1, kv_in_flight=10, kv_of_rest=20)
    assert not policy.shrink(ready=8, soon=0, kv_in_flight=30, kv_of_rest=20)


@given(st.floats(0.05, 0.95), st.floats(0, 1e4), st.floats(0, 1e4), st.booleans())
def test_the_policy_does_not_go_to_and_fro_where_nothing_changes(
    share: float, lent_s: float, cost_s: float, helps: bool
) -> None:
    """The trainer always waits as long as the share of engines says, or lending changes nothing."""
    expected = lent_s / (1 - share) - lent_s
    assume(abs(expected - cost_s) > 1e-6 * max(expected, cost_s))
    policy = Multiplexing(8, share)
    waits = {True: lent_s, False: lent_s / (1 - share) if helps else lent_s}
    decided = [policy.expand(0, waits[policy.lending], cost_s) for _ in range(50)]
    assert decided == [expected > cost_s] * 50


def test_the_speed_of_an_engine_is_found_again() -> None:
    # Forty calls of 10 tokens, one at a time; as many in pairs, and in fours.
    chunks = []
    for start, at_once in ((0.0, 1), (1000.0, 2), (2000.0, 4)):
        seconds = 10 * (0.02 + 0.01 * at_once)
        for n in range(40 // at_once):
            chunks += [Chunk(0, 0, 0, 10, (), (), "stop", called_at=start + n, seconds=seconds)] * at_once
    speed = engine_speed([trajectory(tuple(chunks))])
    found = [speed.seconds_a_token(n, 0.0) for n in (1, 2, 3, 4, 9)]
    assert found == pytest.approx([0.03, 0.04, 0.05, 0.06, 0.06], rel=0.02), "a line between points, level outside"


def trajectory(chunks: tuple[Chunk, ...]) -> Trajectory:
    timings = (("start", 1.0), ("act", 8.0), ("score", 2.0))
    return Trajectory("t", "t", "train", "rl", 1, "g", 1, 0, (), chunks, started_at=10.0, seconds=12.0, timings=timings)


def test_an_episode_is_taken_as_it_was() -> None:
    chunks = tuple(
        Chunk(0, 0, 5, 5 + n, (), (), "stop", called_at=at, seconds=took) for n, at, took in ((4, 12, 1), (6, 15, 2))
    )
    found = episode(trajectory(chunks))
    assert (found.start_s, found.turns, found.reward_s) == (2.0, [(4.0, 2.0), (6.0, 2.0)], 3.0)


def test_a_step_draws_the_episodes_of_the_steps_beside_it() -> None:
    made = {step: [Episode(float(step), (), 0.0, 0.0, 0.0)] for step in (1, 3, 5)}
    drawn = {step: {Measured(2, 2, made).draw(Random(n), step, 0.5).start_s for n in range(40)} for step in range(7)}
    assert drawn == {0: {1.0}, 1: {1.0}, 2: {1.0, 3.0}, 3: {3.0}, 4: {3.0, 5.0}, 5: {5.0}, 6: {5.0}}
    queue = Measured(2, 5, {0: [Episode(float(nth), (), 0.0, 0.0, 0.0) for nth in range(10)]})
    assert {queue.draw(Random(n), 0, 0.45).start_s for n in range(40)} == {3.0, 4.0, 5.0}, "of about the same place"


def test_weights_that_wait_for_what_is_sampled_make_a_step_longer_by_that() -> None:
    # One engine, groups of one turn of 10 tokens at 1 s each; the trainer takes 4 s and publishing 1 s.
    workload = Workload(1, 1, 0.0, LogNormal(1), LogNormal(10), LogNormal(0), 0.0, 0.0, 0.0)
    machines = Machines(1, 0, EngineSpeed(1.0, 0.0, 0.0, NO_PREFILL), 1.0, 0.0)
    ends = {
        way: [s.end for s in Simulation(workload, machines, TrainerSpeed(4.0, 0.0, 0.0), 3, 1, 1, False, way).run()]
        for way in ("go_on", "drain", "again")
    }
    # Two turns end at 10 s. The third one begins at 15 s; 4 s later the second step's weights come.
    assert ends["go_on"] == pytest.approx([15, 20, 31]), "it is paused for 1 s"
    assert ends["drain"] == pytest.approx([15, 26, 31]), "it ends at 25 s, and only then come the weights"
    assert ends["again"] == pytest.approx([15, 20, 35])


def test_machines_are_taken_back_before_the_batch_is_there_if_the_rest_will_finish_it_meanwhile() -> None:
    """With a switch of 0.1 s nothing can be finished meanwhile; with one of 20 s much can."""
    workload = Workload(16, 4, tokens=LogNormal(800, 1, 4000), tool_s=LogNormal(2, 1, 20))
    waits = {}
    for switch_s in (0.1, 20.0):
        machines = Machines(2, 2, switch_s=switch_s)
        simulation = Simulation(workload, machines, TrainerSpeed(10.0, 0.0), 12, 2, 1, True)
        simulation.run()
        switches = [ended - began for state, began, ended in simulation.spans if state == "switch"]
        waits[switch_s] = switches
    assert waits[20.0], "lending took place"
    assert min(waits[20.0]) < 19.9, "part of the switch was over when the batch was there"


def test_published_runs_are_fitted_to_their_synchronous_step_and_gain_by_each_change() -> None:
    small = replace(MARIN, workload=replace(MARIN.workload, prompts=16), sampling=2)
    found = fitted(small)
    steps = ladder(found)
    assert steps["synchronous"] == pytest.approx(small.synchronous_s, rel=0.02)
    assert steps["synchronous"] > steps["overlap"] >= steps["partial rollout"] >= steps["no log-prob pass"] - 1e-6
    assert steps["age"] >= small.update_s


def test_a_run_with_too_few_steps_is_refused(tmp_path: Path) -> None:
    RunStore.create(tmp_path / "run").close()
    with pytest.raises(ConfigError, match="8 are needed"):
        predict(tmp_path / "run")


def test_a_file_says_what_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scene.yaml"
    file.write_text(
        "machines: {engines: 3, lent: 1, speed: {kv_tokens: 1.0e+6}}\ntrainer: {fixed_s: 2, seconds_a_token: 1.0e-6}\n"
        "workload: {prompts: 4, group_size: 2, turns: {mean: 2}, tool_s: {mean: 100}}\n"
    )
    scene = read_scenario(file)
    assert scene.machines == Machines(3, 1, EngineSpeed(kv_tokens=1e6))
    assert scene.workload == Workload(4, 2, turns=LogNormal(2.0), tool_s=LogNormal(100.0))
    simulate(None, tmp_path, file)
    steps = {
        line.split("|")[1].strip(): line.split("|")[2] for line in capsys.readouterr().out.splitlines() if "|" in line
    }
    assert float(steps["synchronous"].split()[0]) > 200, "two tools of 100 s one after the other"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("machines: {engines: 0, lent: 1}", ": machines.engines is 0, and must be at least 1."),
        ("workload: {promts: 3}", ": workload.promts: unexpected keyword argument (it is 3)."),
        ("machnes: 3", ": machnes: there is no such key. Did you mean 'machines'?"),
        ("- 3", " must have keys: machines, trainer, workload."),
        (None, " cannot be read: No such file or directory."),
    ],
)
def test_a_wrong_file_is_a_sentence(tmp_path: Path, text: str | None, sentence: str) -> None:
    file = tmp_path / "scene.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_scenario(file)
    assert f"{file}{sentence}" in str(caught.value)


def test_the_command_draws_and_writes_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each point of the curves takes half a second.
    monkeypatch.setattr("ale_lab.simulation.machine_scenarios.RATIOS", (0, 2))
    simulate(None, tmp_path)
    said = capsys.readouterr().out
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert (tmp_path / "table.md").read_text() in said
    speeds = {line.split("|")[1].strip(): float(line.split("|")[3]) for line in said.splitlines() if " s |" in line}
    assert speeds["synchronous"] == 1.0 < speeds["asynchronous"] < speeds["multiplexed"]
