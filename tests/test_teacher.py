"""These tests make runs with a model on another server, and train on the trajectories of these runs."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from ale_command import TINY, ale, forked_ale, summary_of
from served_sessions import ServedSession, ServedSessions
from upstreams import Scripted

from ale.messages import Answer, ChatReply, Message, ModelCall, ToolCall, ToolSpec
from ale.registry.hooks import Hooks
from ale.session.tokenizer import ChatTokenizer, byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import Sampling
from ale.specs.start import Reply
from ale.store.run_store import RunStore
from ale_bash.task_source import BashTasks
from ale_endpoint.recording import RecordedCall, Recording

RUN = """
name: taught
run_dir: {runs}
tasks: {{use: bash, families: [write, count]}}
trainer: null
algorithm: {{use: ipa, group_size: 2}}
engine: {{use: upstream, url: "{url}", model: teacher, key: "${{oc.env:TEACHER_KEY}}"}}
rl: {{steps: 2, prompts_per_step: 2}}
eval: {{episodes: 4}}
"""
STUDENT = """
name: student
run_dir: {runs}
model:
  scratch: {{hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, vocab_size: 400, max_length: 512}}
tasks: {{use: bash, families: [write, count]}}
engine: {{use: torch, threads: 1, max_batch: 8}}
trainer: {{use: torch, threads: 1}}
rollout: {{concurrency: 4, max_calls: 2, max_tokens: 24, max_context: 512}}
sft: {{demonstrations: {{data: [{data}]}}, steps: 2, batch_size: 4}}
eval: {{episodes: 2}}
"""


@pytest.fixture
async def teacher(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServedSession]:
    """A served endpoint that solves tasks of the family `write` and gives up on the others."""
    source = BashTasks(BashTasks.Config(families=("write", "count")), DriverContext())
    tasks = {
        task.instruction: task
        for split in ("train", "heldout")
        for task, _ in zip(source.tasks(split), range(40), strict=False)
    }

    async def teach(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply:
        task = tasks[messages[1].content]
        if task.tags[0] == "write" and messages[-1].role == "user":
            call = ToolCall("c1", "shell", json.dumps({"command": task.solution}))
            return Reply(Message("assistant", "I write.", (call,)))
        return Reply(Message("assistant", "", (ToolCall("c2", "finish", "{}"),)))

    endpoint = ServedSessions(byte_tokenizer(), Scripted(), Hooks())
    async with endpoint:
        session = endpoint.open("teacher", Sampling(), max_calls=9999, max_context=1 << 20, responder=teach)
        monkeypatch.setenv("TEACHER_KEY", session.api_key)
        yield session


def run_file(folder: Path, session: ServedSession) -> Path:
    path = folder / "run.yaml"
    path.write_text(RUN.format(runs=folder / "runs", url=session.base_url))
    return path


def holds(folder: Path, text: str) -> list[Path]:
    """The files under a folder that hold a text."""
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


async def test_a_teachers_rollouts_train_a_student(teacher: ServedSession, tmp_path: Path) -> None:
    file, dump = run_file(tmp_path, teacher), tmp_path / "dump"
    done = await asyncio.to_thread(forked_ale, "run", file, "--only", "rollout", "--out", dump)
    summary = summary_of(done)
    assert (summary["rollouts"], summary["sampled_tokens"], summary["failures"]) == (8, 0, {})
    with RunStore.open(dump) as store:
        taught = list(store.trajectories())
    assert {t.passed for t in taught if t.tags[0] == "write"} == {True}
    assert {t.passed for t in taught if t.tags[0] == "count"} == {False}
    assert not any(chunk.sampled for t in taught for chunk in t.chunks)
    assert all(t.sequences[0].messages[2].content == "I write." for t in taught if t.passed)
    student = tmp_path / "student.yaml"
    student.write_text(STUDENT.format(runs=tmp_path / "runs", data=dump))
    trained = await asyncio.to_thread(forked_ale, "run", student, "--out", tmp_path / "trained")
    summary = summary_of(trained)
    assert set(summary["heldout"]) == {"before_sft", "after_sft"}
    assert "4 of 8 demonstrations are trained on (4 pass their tests)" in trained.stdout + trained.stderr
    tokenizer = ChatTokenizer.load(tmp_path / "trained" / "model" / "initial")
    assert tokenizer.decode(tokenizer.encode("I write.")) == "I write."
    assert not holds(tmp_path, os.environ["TEACHER_KEY"])
    assert os.environ["TEACHER_KEY"] not in done.stdout + done.stderr


async def test_any_run_file_can_be_given_a_teacher(teacher: ServedSession, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    section = f"engine={{use: upstream, url: '{teacher.base_url}', model: t, key: '${{oc.env:TEACHER_KEY}}'}}"
    done = await asyncio.to_thread(forked_ale, "run", file, "--only", "rollout", section, "rl.steps=1")
    summary = summary_of(done)
    assert (summary["rollouts"], summary["sampled_tokens"], summary["failures"]) == (4, 0, {})
    assert not holds(tmp_path, os.environ["TEACHER_KEY"])
    checked = await asyncio.to_thread(forked_ale, "config", "validate", file, section)
    assert checked.stderr.startswith("error: engine: 'upstream' answers with messages of another model")
    half = ("config", "validate", file, section, "--only", "rollout")
    assert "is valid." in (await asyncio.to_thread(forked_ale, *half)).stdout


def test_a_recording_trains_a_student(tmp_path: Path) -> None:
    with Recording(tmp_path / "calls.jsonl") as recording:
        for i in range(6):
            messages = (Message("system", "Act."), Message("user", f"Write {i} into the file f{i}.txt."))
            said = Message("assistant", "", (ToolCall("c", "shell", json.dumps({"command": f"echo {i} > f{i}.txt"})),))
            answer = Answer((ChatReply(said, "tool_calls", 0, 1, 1),), "http://up/v1")
            call = ModelCall(messages, (ToolSpec("shell", "Runs."),))
            recording.add(RecordedCall(f"s{i}", 0, 0, 0, call, answer))
    student = tmp_path / "student.yaml"
    student.write_text(STUDENT.format(runs=tmp_path / "runs", data=tmp_path / "calls.jsonl"))
    trained = ale("run", student, "--out", tmp_path / "trained")
    assert set(summary_of(trained)["heldout"]) == {"before_sft", "after_sft"}
    assert (
        "6 of 6 demonstrations are trained on (0 pass their tests, 6 have no score)" in trained.stdout + trained.stderr
    )
    with RunStore.open(tmp_path / "trained") as store:
        assert len(store.metrics("sft")["loss"]) == 2
        assert store.count("stage = 'demonstrations'") == 0, "none is run"


async def test_a_teacher_is_evaluated(teacher: ServedSession, tmp_path: Path) -> None:
    done = await asyncio.to_thread(forked_ale, "eval", run_file(tmp_path, teacher))
    (result,) = summary_of(done)["heldout"].values()
    assert (result["episodes"], result["success"]) == (4, 0.5)


async def test_a_refused_key_ends_the_run_with_a_sentence(
    teacher: ServedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEACHER_KEY", "not-the-right-key")
    done = await asyncio.to_thread(
        forked_ale, "run", run_file(tmp_path, teacher), "--only", "rollout", "--out", tmp_path / "dump"
    )
    assert done.returncode == 2
    assert "refuses the key from engine.key (401)" in done.stderr
    assert not holds(tmp_path, "not-the-right-key")
    assert "not-the-right-key" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([], "engine: 'upstream' answers with messages of another model"),
        (["--only", "rollout", "engine.key=sk-123456789"], "engine.key: write ${oc.env:NAME}"),
        (["--only", "rollout", "engine=null"], "engine: must be the name of an engine plugin"),
        (["--only", "rollout", "engine.url=host"], "engine: the upstream 'host' must be a URL"),
        (["--only", "rollout", "engine.parameters={n: 2}"], "'n' is set by the session"),
        (["--only", "rollout", "sft.demonstrations={data: [x], count: 3}"], "with 'data' none is"),
    ],
)
async def test_what_cannot_work_is_refused(
    teacher: ServedSession, tmp_path: Path, overrides: list[str], sentence: str
) -> None:
    done = await asyncio.to_thread(forked_ale, "run", run_file(tmp_path, teacher), *overrides)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert "123456789" not in done.stderr
    assert not (tmp_path / "runs").exists(), "nothing was begun"
