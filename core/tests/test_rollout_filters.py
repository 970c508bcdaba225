"""Which rollouts the configured filters reject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sample_trajectory import build_trajectory

from ale.config.episode import RolloutConfig
from ale.messages import Message, ToolCall
from ale.registry.hooks import Hooks
from ale.rollout.contradictions import KnownAnswers, tool_answers
from ale.rollout.filters import Filter, illegal_run
from ale.trajectory import Chunk, ChunkError, Observation, Sequence, Trajectory

BARE = Trajectory("r", "t", "train", "rl", 1, "g", 0, 0, (), ())
Make = Callable[..., Trajectory]


@pytest.fixture
def trajectory() -> Make:
    """Makes trajectories."""
    return build_trajectory


def judge(**config: object) -> Callable[[Trajectory], str | None]:
    made = Filter(RolloutConfig(**config), Hooks())  # type: ignore[arg-type]
    return lambda t: (r := made.rejection(t)) and r.kind


def saw(*pairs: tuple[str, str], tool: str = "look") -> tuple[Observation, ...]:
    """Calls of a tool and their answers."""
    return tuple(Observation(i, tool, {"q": query, "n": 1}, text, 0, 0.0) for i, (query, text) in enumerate(pairs))


def test_a_tool_that_answers_otherwise_is_unreliable_within_a_rollout_and_across_them(trajectory: Make) -> None:
    reject = judge(deterministic_tools=["look"])
    assert reject(trajectory(observations=saw(("a", "1"), ("b", "2"), ("a", "1")))) is None
    assert reject(trajectory(observations=saw(("c", "1"), ("c", "2")))) == "unreliable tool"
    assert reject(trajectory(observations=saw(("a", "3")))) == "unreliable tool"
    assert reject(trajectory(observations=saw(("a", "3")))) is None, "the newest answer is what counts"
    assert reject(trajectory(observations=saw(("a", "9")), task_id="other")) is None, "of each task its own"
    assert reject(trajectory(observations=saw(("a", "9"), tool="shell"))) is None, "a tool that nobody vouches for"


def test_what_may_differ_is_told_and_both_answers_are_kept(trajectory: Make) -> None:
    known = KnownAnswers([r"\d+ ms"])
    tools = frozenset({"look"})
    assert known.contradiction(trajectory(observations=saw(("a", "x in 3 ms"))), tools) is None
    assert known.contradiction(trajectory(observations=saw(("a", "x in 12 ms"))), tools) is None
    said = known.contradiction(trajectory(observations=saw(("a", "y in 1 ms"))), tools)
    assert said is not None
    assert "'look'" in said
    assert "'y in 1 ms'" in said
    assert "'x in 12 ms'" in said


def test_calls_of_an_agent_that_reports_none_are_read_from_its_messages(trajectory: Make) -> None:
    call = ToolCall("c1", "look", '{"q": "a"}')
    whole = (Message("user", "do"), Message("assistant", "", (call,)), Message("tool", "long", tool_call_id="c1"))
    cut = (*whole[:2], Message("tool", "[cut]", tool_call_id="c1"))
    broken = ToolCall("c2", "look", '{"q": ')
    more = (Message("assistant", "", (broken,)), Message("tool", "no", tool_call_id="c2"))
    t = trajectory(observations=(), sequences=(Sequence((1,), whole), Sequence((1,), (*cut, *more))))
    assert [(a.tool, a.arguments, a.text) for a in tool_answers(t)] == [
        ("look", '{"q": "a"}', "long"),
        ("look", '{"q": ', "no"),
    ]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xy")), max_size=30), st.integers(1, 3))
def test_contradictions_are_those_of_a_plain_memory(calls: list[tuple[str, str]], most: int) -> None:
    known = KnownAnswers(most=most)
    memory: list[tuple[str, str]] = []
    for query, text in calls:
        expected = next((old != text for q, old in memory if q == query), False)
        memory = [pair for pair in memory if pair[0] != query] + [(query, text)]
        memory = memory[-most:]
        t = replace(BARE, observations=saw((query, text)))
        assert (known.contradiction(t, frozenset({"look"})) is not None) == expected
        assert len(known) <= most


@given(st.lists(st.booleans(), max_size=20))
def test_the_longest_run_of_illegal_calls_is_found(illegal: list[bool]) -> None:
    error = ChunkError("illegal_call", "no such tool")
    chunks = tuple(
        Chunk(i, 0, i, i + 1, (0.0,), (0,), "stop", error=error if bad else None) for i, bad in enumerate(illegal)
    )
    slow = max(
        (j - i for i in range(len(illegal) + 1) for j in range(i, len(illegal) + 1) if all(illegal[i:j])), default=0
    )
    assert illegal_run(replace(BARE, chunks=chunks)) == slow


def test_side_calls_break_no_run_of_illegal_calls_and_an_experts_are_not_the_policys() -> None:
    error = ChunkError("illegal_call", "no such tool")
    turns = [Chunk(i, 0, i, i + 1, (), (), "stop", error=error) for i in range(5)]
    aside = replace(turns[2], error=None, side=True)
    assert illegal_run(replace(BARE, chunks=(*turns[:2], aside, *turns[3:]))) == 4
    replayed = [replace(chunk, sampled=False) for chunk in turns[:3]]
    assert illegal_run(replace(BARE, chunks=(*replayed, *turns[3:]))) == 2


def test_where_a_policy_is_judged_its_illegal_calls_are_failures(trajectory: Make) -> None:
    error = ChunkError("illegal_call", "no such tool")
    bad = trajectory(reward=0.0)
    bad = replace(bad, chunks=tuple(replace(chunk, error=error) for chunk in bad.chunks))
    reject = judge(max_illegal_calls=len(bad.chunks))
    assert reject(replace(bad, stage="rl")) == "illegal calls"
    assert reject(replace(bad, stage="eval")) is None
    assert reject(replace(bad, stage="attempt")) is None
