"""The record of an agent's calls answers the same calls alike, and sees it when they are others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sample_conversation import EXPERT, TOOLS

from ale.errors import StartDiverged
from ale.messages import ToolSpec
from ale.specs.sandbox import AGENT, Sandbox, SandboxSpec
from ale_train.starts import ExpertReplies
from ale_train.starts.recording_sandbox import RecordingSandbox, ReplayedSandbox

from .conftest import LIST, ForkBox, Forks

pytestmark = pytest.mark.usefixtures("quiet")

CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("exec"), st.sampled_from(["put a 1", "put b 2", "cat a", "cat b", LIST])),
        st.tuples(st.just("upload"), st.sampled_from("ab")),
        st.tuples(st.just("download"), st.sampled_from("ab")),
        st.tuples(st.just("reply"), st.just("")),
    ),
    max_size=12,
)


async def play(box: Sandbox, replies: ExpertReplies, calls: list[tuple[str, str]]) -> list[object]:
    """What an agent is told that does all this."""
    told: list[object] = []
    for method, what in calls:
        if method == "exec":
            told.append(await box.exec(what))
        elif method == "upload":
            await box.upload({what: b"up"})
        elif method == "download":
            try:
                told.append(await box.download(what))
            except FileNotFoundError as error:
                told.append(error.filename)
        else:
            replies.done = min(replies.done + 1, 4)
    return told


@settings(max_examples=150, deadline=None)
@given(CALLS, st.data())
def test_a_record_answers_the_same_calls_alike_and_no_others(calls: list[tuple[str, str]], data: st.DataObject) -> None:
    async def check() -> None:
        provider = Forks()
        replies = ExpertReplies(EXPERT, 4)
        recording = RecordingSandbox(await provider.start_sandbox(SandboxSpec()), replies)
        told = await play(recording, replies, calls)
        record = recording.record()
        assert record is not None
        snapshot = await recording.inner.snapshot()

        async def fork() -> tuple[ReplayedSandbox, ExpertReplies, Sandbox]:
            inner, again = await provider.start_sandbox(SandboxSpec(from_snapshot=snapshot)), ExpertReplies(EXPERT, 4)
            return ReplayedSandbox(inner, record, frozenset({"shell"}), again, lambda reason: None), again, inner

        replayed, again, inner = await fork()
        ran = len(provider.ran)
        assert await play(replayed, again, calls) == told
        assert len(provider.ran) == ran
        again.done = 4
        replayed.policy_asked([ToolSpec("title", "Another.")])
        with pytest.raises(StartDiverged):
            await replayed.exec(LIST)

        replayed, again, inner = await fork()
        await play(replayed, again, calls)
        again.done = 4
        replayed.policy_asked(TOOLS)
        assert (await replayed.exec(LIST)).stdout == (await inner.exec(LIST)).stdout

        place = data.draw(st.integers(0, len(calls)))
        cut = data.draw(st.booleans()) and place < len(calls)
        other = [*calls[:place], *([] if cut else [("exec", "other")]), *calls[place + cut :]]
        if [c for c in other if c[0] != "reply"] == [c for c in calls if c[0] != "reply"]:
            return
        replayed, again, inner = await fork()
        with suppress(StartDiverged):
            await play(replayed, again, other)
            again.done = 4
            replayed.policy_asked(TOOLS)
        with pytest.raises(StartDiverged):
            replayed.check()

    asyncio.run(check())


async def test_a_call_under_way_is_in_no_record() -> None:
    provider = Forks()
    recording = RecordingSandbox(await provider.start_sandbox(SandboxSpec()), ExpertReplies(EXPERT, 4))
    call = asyncio.create_task(recording.exec("stand"))
    await asyncio.sleep(0.01)
    assert recording.record() is None
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    assert recording.record() is None
    assert recording.unfit == "a call of its agent was cancelled"


async def test_what_the_agent_changes_afterwards_does_not_change_the_record() -> None:
    class Box(ForkBox):
        async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
            await super().upload(files, user=user, mode=mode)

    provider = Forks()
    recording = RecordingSandbox(await provider.start_sandbox(SandboxSpec()), ExpertReplies(EXPERT, 4))
    env, files = {"A": "1"}, {"a": b"1"}
    await recording.exec("list", env=env)
    await recording.upload(files)
    env["A"], files["a"] = "2", b"2"
    record = recording.record()
    assert record is not None
    assert record[0].asked.arguments["env"] == {"A": "1"}
    assert record[1].asked.arguments["files"] == {"a": b"1"}


async def test_a_call_at_another_time_has_diverged() -> None:
    provider, calls = Forks(), [("reply", ""), ("exec", LIST)]
    replies = ExpertReplies(EXPERT, 4)
    recording = RecordingSandbox(await provider.start_sandbox(SandboxSpec()), replies)
    await play(recording, replies, calls)
    record = recording.record()
    assert record is not None
    fork = ReplayedSandbox(recording.inner, record, frozenset({"shell"}), ExpertReplies(EXPERT, 4), lambda reason: None)
    with pytest.raises(StartDiverged, match="but before with exec 'list' after 1 chunks"):
        await fork.exec(LIST)
