"""These tests check that a source gives the same tasks every time, that splits share none, and that solutions pass.

Tasks need no hidden tests; where a task has both tests and a solution, these must fit."""

from __future__ import annotations

import inspect
import itertools
from contextlib import suppress

import pytest

from ale.errors import AleError, ConfigError
from ale.messages import Message, ToolSpec
from ale.specs.start import Reply
from ale.task import HELDOUT, TRAIN, Task, as_bytes
from ale_testing.async_tests import async_test, fails_with
from ale_testing.fake_sandboxes import FolderSandbox
from ale_testing.played_episodes import playable
from ale_testing.plugin_under_test import Subject

FIRST = 200
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOLS = [ToolSpec("shell", "Run a shell command.", PARAMETERS)]


async def first(subject: Subject, split: str, n: int = FIRST) -> list[Task]:
    """The first tasks of a split, from a source of its own."""
    async with subject.build() as source:
        return list(itertools.islice(source.tasks(split), n))


@async_test
async def test_both_usual_splits_have_tasks(subject: Subject) -> None:
    for split in (TRAIN, HELDOUT):
        tasks = await first(subject, split)
        assert tasks, f"the split '{split}' must have tasks"
        assert all(isinstance(t, Task) for t in tasks), "tasks() must give ale.task.Task objects"


@async_test
async def test_the_same_settings_give_the_same_tasks(subject: Subject) -> None:
    for split in (TRAIN, HELDOUT):
        assert await first(subject, split) == await first(subject, split), (
            f"'{split}' must be the same each time, in one order"
        )


@async_test
async def test_a_split_can_be_read_twice(subject: Subject) -> None:
    async with subject.build() as source:
        one, two = (list(itertools.islice(source.tasks(TRAIN), 20)) for _ in range(2))
        assert one == two, "each call of tasks() must begin with the first task"


@async_test
async def test_ids_are_unique_and_the_splits_share_none(subject: Subject) -> None:
    train, held = await first(subject, TRAIN), await first(subject, HELDOUT)
    for name, tasks in ((TRAIN, train), (HELDOUT, held)):
        ids = [t.id for t in tasks]
        twice = {i for i in ids if ids.count(i) > 1}
        assert not twice, f"task ids must be unique; '{name}' has {sorted(twice)[:3]} more than once"
    shared = {t.id for t in train} & {t.id for t in held}
    assert not shared, f"held-out tasks must not be trained on; {sorted(shared)[:3]} are in both splits"


@async_test
async def test_an_unknown_split_is_refused(subject: Subject) -> None:
    async with subject.build() as source:

        async def ask() -> list[Task]:
            return list(itertools.islice(source.tasks("no-such-split"), 1))

        error = await fails_with(ask(), ConfigError, why="a split that there is not")
        assert "no-such-split" in str(error), "the sentence must name the split"


@async_test
async def test_tasks_can_be_written_to_a_file_and_read_back(subject: Subject) -> None:
    for task in await first(subject, TRAIN, 50):
        assert Task.model_validate_json(task.model_dump_json()) == task, (
            f"the task {task.id} must survive JSON unchanged"
        )
        beside = {} if task.build is None else task.build.files
        for path in (*task.files, *beside, *(task.tests.files if task.tests else ())):
            assert not path.startswith("/"), f"{task.id}: files are relative paths, not {path}"
            assert ".." not in path.split("/"), f"{task.id}: files stay in their folder, not {path}"


@async_test
async def test_reference_solutions_solve_their_tasks(subject: Subject) -> None:
    tasks = [t for t in playable(await first(subject, TRAIN, 40)) if t.solution is not None and t.tests is not None][:6]
    for task in tasks:
        assert task.tests is not None
        box = FolderSandbox(task)
        async with box:
            for solved in (False, True):
                if solved:
                    await box.exec(str(task.solution), timeout_s=60)
                await box.upload({f".ale-tests/{p}": as_bytes(content) for p, content in task.tests.files.items()})
                env = {"ALE_TESTS": str(box.folder / ".ale-tests")}
                done = await box.exec(task.tests.command, timeout_s=task.tests.timeout_s, env=env)
                if solved:
                    assert done.exit_code == 0, (
                        f"the solution of {task.id} must pass its tests; `{task.tests.command}` exits with "
                        f"{done.exit_code} and says {done.output[-300:]!r}"
                    )
                else:
                    assert done.exit_code != 0, f"the tests of {task.id} must fail before anybody has done anything"


@pytest.mark.ale_needs("demonstrations")
@async_test
async def test_a_source_of_demonstrations_has_a_demonstrator_that_replies(subject: Subject) -> None:
    async with subject.build() as source:
        tasks = list(itertools.islice(source.tasks(TRAIN), 5))
        shown = [(task, source.demonstrator(task, seed)) for seed, task in enumerate(tasks)]
        assert any(responder for _, responder in shown), (
            "a source with the capability 'demonstrations' must have a demonstrator for its tasks"
        )
        for task, responder in shown:
            if responder is None:
                continue
            assert callable(responder), (
                f"a demonstrator is a coroutine function of messages and tools, not {responder!r}"
            )
            answer = responder([Message("user", task.instruction)], TOOLS)
            assert inspect.isawaitable(answer), "a demonstrator must be called with await"
            said = await answer
            assert isinstance(said, Reply), f"a demonstrator must begin with a Reply, not with {said!r}"
            reply = said.message
            assert isinstance(reply, Message), f"a demonstrator's Reply must hold a Message, not {reply!r}"
            assert reply.role == "assistant", f"a demonstrator answers in the assistant's place, not as {reply.role}"
            assert reply.content or reply.tool_calls, "a demonstrator must say or call something"


@async_test
async def test_reading_on_after_close_raises_only_ale_errors(subject: Subject) -> None:
    source = subject.build()
    async with source:
        stream = iter(source.tasks(TRAIN))
        next(stream)
    with suppress(AleError):
        next(stream, None)
