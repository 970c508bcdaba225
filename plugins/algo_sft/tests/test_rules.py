"""The rules of m_task on trajectories that a session recorded: agents that compress, prune, try again, ask others, and
loop."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.errors import EngineError
from ale.messages import Message, ToolCall, ToolSpec
from ale.registry.hooks import Hooks
from ale.rollout.side_calls import mark_side_calls
from ale.session.session import RecordedSession, Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import Sampling
from ale.specs.start import Reply
from ale.trajectory import Trajectory
from ale_sft import SFT
from ale_sft.contexts import overlap
from ale_sft.rules import RULES, SIMILAR
from ale_testing.fake_engines import CannedEngine
from ale_train.batches.retokenization import retokenize

SHELL = (ToolSpec("shell", "Run."), ToolSpec("task", "Ask a sub-agent."))
READ = (ToolSpec("read", "Read."),)
SYSTEM, TASK = Message("system", "You act in a shell, step by step."), Message("user", "Repair the tests.")


class Episode:
    """An episode whose replies are given: each call is answered, and recorded, by the session that agents talk to."""

    def __init__(self) -> None:
        self._next: list[Message] = []
        self._session = Sessions(byte_tokenizer(), CannedEngine([EngineError("Nothing samples.")]), Hooks()).open(
            "s", Sampling(), max_calls=99, max_context=1 << 20, responder=self._respond
        )
        self._calls = 0

    async def _respond(self, messages: object, tools: object) -> Reply:
        return Reply(self._next.pop())

    async def call(
        self, history: list[Message], reply: Message, *answers: str, tools: tuple[ToolSpec, ...] = SHELL
    ) -> list[Message]:
        """The history with the reply and what the environment answers."""
        self._next.append(reply)
        made = (await self._session.chat(history, tools)).message
        results = [Message("tool", text, tool_call_id=c.id) for text, c in zip(answers, made.tool_calls, strict=True)]
        return [*history, made, *results]

    def shell(self, command: str, thought: str = "") -> Message:
        """A reply that runs a command, under a new id as agents have it."""
        self._calls += 1
        return Message("assistant", thought, (ToolCall(f"c{self._calls}", "shell", f'{{"command": "{command}"}}'),))

    @property
    def session(self) -> RecordedSession:
        return self._session

    def end(self) -> Trajectory:
        """The trajectory, with side calls told as a rollout tells them."""
        recorder = self._session.recorder
        chunks = mark_side_calls(recorder.sequences, recorder.chunks)
        return Trajectory("t", "t", "train", "demonstrations", 0, "g", 0, 0, recorder.sequences, chunks)


def masked(trajectory: Trajectory) -> dict[str, list[int]]:
    """What each rule masks; nothing left out but rules that mask nothing. The same in another vocabulary, as a run does
    it."""
    found = {name: sorted(rule(trajectory)) for name, rule in RULES.items()}
    again = retokenize(trajectory, byte_tokenizer())
    assert found == {name: sorted(rule(again)) for name, rule in RULES.items()}
    return {name: turns for name, turns in found.items() if turns}


async def test_a_conversation_that_only_grows_has_nothing_to_mask() -> None:
    e = Episode()
    history = await e.call([SYSTEM, TASK], e.shell("ls"), "a.py")
    history = await e.call(history, e.shell("cat a.py"), "x = 1")
    await e.call([*history], Message("assistant", "Repaired."))
    assert masked(e.end()) == {}


async def test_turns_that_a_summary_replaced_are_compressed_and_the_call_that_made_it_is_a_sub_task() -> None:
    e = Episode()
    history = await e.call([SYSTEM, TASK], e.shell("ls"), "a.py")
    history = await e.call(history, e.shell("cat a.py"), "x = 1")
    summary = "I looked at a.py, which sets x."
    await e.call([*history, Message("user", "Summarise the conversation.")], Message("assistant", summary))
    history = [SYSTEM, TASK, Message("user", f"What was done: {summary}\nGo on."), *history[-2:]]
    history = await e.call(history, e.shell("sed -i s/1/2/ a.py"), "")
    await e.call(history, Message("assistant", "Repaired."))
    assert masked(e.end()) == {"compressed": [0], "sub_task": [2], "side_context": [0, 1, 2]}, (
        "the second turn was brought along as it was: it is kept"
    )


async def test_a_task_that_is_written_anew_with_the_summary_in_it_compresses_all_before() -> None:
    e = Episode()
    history = [SYSTEM, TASK]
    for command in ("ls", "cat a.py"):
        history = await e.call(history, e.shell(command), command)
    await e.call(
        [SYSTEM, Message("user", "Repair the tests. So far: looked at a.py.")], Message("assistant", "Repaired.")
    )
    assert masked(e.end()) == {"compressed": [0, 1], "side_context": [0, 1]}


async def test_compression_twice_over_leaves_only_the_last_context() -> None:
    e = Episode()
    for number in range(3):
        said = [Message("user", f"Summary {number}.")] if number else []
        history = await e.call([SYSTEM, TASK, *said], e.shell(f"step {number}"), f"done {number}")
    assert masked(e.end()) == {"compressed": [0, 1], "side_context": [0, 1]}
    assert len(history) == 5


async def test_turns_whose_results_were_taken_out_of_the_history_are_pruned() -> None:
    e = Episode()
    history = await e.call([SYSTEM, TASK], e.shell("cat big.log"), "line\n" * 50)
    history = await e.call(history, e.shell("ls"), "a.py")
    history[3] = replace(history[3], content="[output removed]")
    history = await e.call(history, e.shell("cat a.py"), "x = 1")
    await e.call(history, Message("assistant", "Repaired."))
    assert masked(e.end()) == {"pruned": [0], "side_context": [0, 1]}, "what followed the pruned turn stands as it was"


async def test_an_answer_that_was_not_gone_on_from_is_pruned() -> None:
    e = Episode()
    history = await e.call([SYSTEM, TASK], e.shell("ls"), "a.py")
    await e.call(history, e.shell("rm -rf a.py"), "")
    history = await e.call(history, e.shell("cat a.py"), "x = 1")
    await e.call(history, Message("assistant", "Repaired."))
    assert masked(e.end()) == {"pruned": [1], "side_context": [0, 1]}


async def test_turns_dropped_from_the_middle_of_the_history_are_pruned() -> None:
    e = Episode()
    history = [SYSTEM, TASK]
    for command in ("one", "two", "three"):
        history = await e.call(history, e.shell(command), command)
    await e.call([*history[:2], *history[4:]], Message("assistant", "Repaired."))
    assert masked(e.end()) == {"pruned": [0], "side_context": [0, 1, 2]}


async def test_a_sub_agents_turns_are_of_another_task_and_its_callers_are_not() -> None:
    e = Episode()
    ask = Message("assistant", "", (ToolCall("c0", "task", '{"about": "a.py"}'),))
    inner = [Message("system", "You read code and report."), Message("user", "What is in a.py?")]
    inner = await e.call(inner, Message("assistant", "", (ToolCall("r", "read", "{}"),)), "x = 1", tools=READ)
    await e.call(inner, Message("assistant", "It sets x to 1, nothing more."), tools=READ)
    history = await e.call([SYSTEM, TASK], ask, "It sets x to 1, nothing more.")
    await e.call(history, Message("assistant", "Repaired."))
    assert masked(e.end()) == {"sub_task": [0, 1], "side_context": [0, 1]}


async def test_a_sub_agent_with_the_same_tools_is_told_by_its_prompt_and_a_clock_in_a_prompt_makes_no_other_agent() -> (
    None
):
    e = Episode()
    prompt = "You act in a shell, step by step, and say when it is done. It is {} o'clock."
    other = [Message("system", "You review changes and find mistakes in them."), TASK]
    await e.call(other, e.shell("git diff"), "nothing")
    history = await e.call([Message("system", prompt.format(9)), TASK], e.shell("ls"), "a.py")
    await e.call([Message("system", prompt.format(10)), *history[1:]], Message("assistant", "Repaired."))
    assert masked(e.end()) == {"sub_task": [0], "side_context": [0, 1]}


async def test_side_calls_are_neither_turns_nor_the_end_of_the_episode() -> None:
    e = Episode()
    history = await e.call([SYSTEM, TASK], e.shell("ls"), "a.py")
    await e.call(history, Message("assistant", "Repaired."))
    await e.call([Message("user", "A title for this?")], Message("assistant", "Repaired."), tools=())
    t = e.end()
    assert [c.side for c in t.chunks] == [False, False, True]
    assert masked(t) == {}
    first = replace(t, chunks=(t.chunks[2], t.chunks[0], t.chunks[1]))
    sft = SFT(SFT.Config(task_rules=tuple(RULES)), DriverContext())
    batch = sft.batch([first])
    assert batch is not None
    assert len(batch.chunks.returns) == 2
    assert batch.metrics["masked_task"] == 0


async def test_a_call_made_again_is_a_near_duplicate_unless_its_answer_was_another() -> None:
    e = Episode()
    history = await e.call([SYSTEM, TASK], e.shell("pytest"), "2 failed")
    history = await e.call(history, e.shell("ls", "I look."), "a.py")
    history = await e.call(history, e.shell("ls", "Once more I look at what there is."), "a.py")
    history = await e.call(history, e.shell("ls -l"), "a.py")
    history = await e.call(history, e.shell("pytest"), "all passed")
    history = await e.call(history, e.shell("pytest"), "2 failed")
    await e.call(history, Message("assistant", "Repaired."))
    assert masked(e.end()) == {"near_duplicate": [2, 5]}, "by the call and its answer, whatever is said beside it"


async def test_texts_are_near_duplicates_from_the_stated_overlap_on() -> None:
    e = Episode()
    first = "I will now look at the file and repair what is wrong with it, step by step, until all is well again"
    texts = [first, f"{first}!", "Something else is to be said here, which is quite another sentence.", first]
    history = [SYSTEM, TASK]
    for text in texts:
        history = [*await e.call(history, Message("assistant", text)), Message("user", "Go on.")]
    t = e.end()
    assert masked(t) == {"near_duplicate": [1, 3]}
    bags = []
    for chunk in t.chunks:
        tokens = t.sequences[0].token_ids[chunk.start : chunk.end]
        bags.append(Counter(zip((-1, *tokens), tokens, strict=False)))
    assert overlap(bags[0], bags[1]) >= SIMILAR > overlap(bags[0], bags[2])


async def test_masked_turns_stay_in_the_context_of_later_ones_and_their_share_is_told() -> None:
    e = Episode()
    history = await e.call([SYSTEM, TASK], e.shell("ls"), "a.py")
    history = await e.call(history, e.shell("ls"), "a.py")
    e.session.mark_error(0, "execution_failed", "no")
    await e.call(history, Message("assistant", "Repaired."))
    t = e.end()
    sft = SFT(SFT.Config(task_rules=("near_duplicate",)), DriverContext())
    batch = sft.batch([t])
    assert batch is not None
    assert tuple(batch.token_ids) == t.sequences[0].token_ids[: t.chunks[2].end], "whole, up to the last turn"
    trained = batch.chunk_ids >= 0
    assert trained.sum() == len(t.chunks[2])
    assert batch.normalizer == pytest.approx(len(t.chunks[2]))
    assert batch.metrics == {"masked_error": pytest.approx(1 / 3), "masked_task": pytest.approx(1 / 3)}


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_the_overlap_is_intersection_over_union_of_bags(one: list[int], other: list[int]) -> None:
    a, b = Counter(one), Counter(other)
    union = sum((a | b).values())
    assert overlap(a, b) == (sum((a & b).values()) / union if union else 1)


@pytest.mark.parametrize("name", RULES)
def test_a_trajectory_without_turns_or_messages_has_nothing_to_say(name: str) -> None:
    t = Trajectory("t", "t", "train", "s", 0, "g", 0, 0, (), ())
    assert RULES[name](t) == frozenset()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rules_take_whatever_an_agent_does_with_its_history(data: st.DataObject) -> None:
    import asyncio

    async def wander() -> Trajectory:
        e, histories = Episode(), [[SYSTEM, TASK]]
        for _ in range(data.draw(st.integers(1, 8))):
            history = list(data.draw(st.sampled_from(histories)))
            if len(history) > 3 and data.draw(st.booleans()):
                del history[data.draw(st.integers(1, len(history) - 1)) :]
                history.append(Message("user", data.draw(st.sampled_from(["Go on.", "Summary."]))))
            histories.append(await e.call(history, e.shell(data.draw(st.sampled_from("ab"))), "out"))
        return e.end()

    t = asyncio.run(wander())
    fate = {name: rule(t) for name, rule in RULES.items()}
    for turns in fate.values():
        assert turns <= set(range(len(t.chunks)))
    assert not fate["compressed"] & fate["pruned"]
    assert fate["compressed"] | fate["pruned"] <= fate["side_context"]
    assert 0 not in fate["near_duplicate"], "the first of its kind is none"
    assert len(t.chunks) - 1 not in fate["side_context"] | fate["sub_task"]
    batch = SFT(SFT.Config(task_rules=tuple(RULES)), DriverContext()).batch([t])
    left = sum(len(c) for i, c in enumerate(t.chunks) if not any(i in turns for turns in fate.values()))
    assert (0 if batch is None else int((batch.chunk_ids >= 0).sum())) == left
