"""These tests check observers: hooks have the right signatures, accept all arguments, and veto only with a sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ale.messages import Message
from ale.registry.hooks import Hooks
from ale.specs.events import VETO_HOOKS, HookSpecs
from ale.specs.sandbox import ExecResult
from ale.task import Task, TaskTests
from ale_testing.async_tests import async_test
from ale_testing.plugin_under_test import Subject
from ale_testing.sample_batches import mixed_group, pack_trajectories, trajectory

TASK = Task(id="kit-größe", instruction="Do it ✓.", tests=TaskTests(command="true"), tags=("a",))
IDS: Mapping[str, Any] = {"sandbox_id": "s-1", "episode_id": "e-1", "task": TASK}


def samples(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """For each hook the arguments of some calls, ordinary and extreme."""
    done = trajectory(1, reward=1.0, error=True)
    odd = "printf 'größe ✓ \x00 \ud800'; rm -rf /"
    results: list[Any] = [
        ExecResult(0, b"out", b"", 0.1),
        ExecResult(124, b"\xff\x00" * 9999, b"\xff", 60.0, True, True),
    ]
    return {
        "ale_run_started": [{"run_id": "r-1", "run_dir": folder, "config": {"name": "kit", "rl": None}}],
        "ale_sandbox_started": [dict(IDS)],
        "ale_before_exec": [{**IDS, "command": "ls", "stdin": b""}, {**IDS, "command": odd, "stdin": b"\xff"}],
        "ale_exec_started": [{**IDS, "by": by, "command": odd, "stdin": b"\x00\xff"} for by in ("agent", "reward")],
        "ale_exec_finished": [
            *({**IDS, "by": "agent", "command": odd, "result": r, "error": None} for r in results),
            {**IDS, "by": "reward", "command": "ls", "result": None, "error": "SandboxError: gone"},
        ],
        "ale_model_called": [
            {"session_id": "e-1", "chunk": chunk, "message": Message("assistant", "größe \ud800")}
            for chunk in done.chunks
        ],
        "ale_trajectory_finished": [{"trajectory": done}, {"trajectory": trajectory(2, reward=0.0, chunks=1)}],
        "ale_filter_trajectory": [{"trajectory": done}],
        "ale_batch_ready": [{"step": 1, "batch": pack_trajectories(mixed_group())}],
        "ale_step_finished": [
            {"stage": "eval", "step": -1, "metrics": {"success": 0.5, "success/a b": float("nan")}},
            {"stage": "rl", "step": 1, "metrics": {"loss": float("inf"), "grad_norm": 1e30}},
        ],
        "ale_run_finished": [{"run_id": "r-1", "summary": {"status": "failed", "error": "größe", "heldout": {}}}],
    }


def hooks_of(driver: Any) -> tuple[Any, dict[str, Callable[..., Any]]]:
    """What carries the hooks, and those that it implements."""
    observer = getattr(driver, "observer", driver)
    fitting = Hooks([("kit", observer)])  # raises a sentence where one does not fit
    names = [name for name in vars(HookSpecs) if name.startswith("ale_") and fitting.has_implementation(name)]
    return observer, {name: getattr(observer, name) for name in names}


def call(hook: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call with the arguments that it takes, as pluggy does."""
    return hook(**{name: arguments[name] for name in inspect.signature(hook).parameters})


@async_test
async def test_its_hooks_fit_and_there_is_at_least_one(subject: Subject) -> None:
    _, found = hooks_of(subject.build())
    assert found, "an observer must implement at least one hook of ale.specs.events, marked with hookimpl"


@async_test
async def test_every_hook_accepts_the_arguments_of_a_run(subject: Subject) -> None:
    driver = subject.build()
    async with driver:
        _, found = hooks_of(driver)
        for name, hook in found.items():
            for arguments in samples(subject.folder).get(name, []):
                try:
                    answer = call(hook, arguments)
                except Exception as error:
                    raise AssertionError(f"{name} must not raise; it raised {type(error).__name__}: {error}") from error
                assert not inspect.isawaitable(answer), f"{name} is called without await: it must be no coroutine"
                if name in VETO_HOOKS:
                    assert answer is None or (isinstance(answer, str) and answer.strip()), (
                        f"{name} must answer None, or a sentence that refuses; it answered {answer!r}"
                    )


@async_test
async def test_hooks_do_not_change_their_arguments(subject: Subject) -> None:
    driver = subject.build()
    async with driver:
        _, found = hooks_of(driver)
        for name, hook in found.items():
            for arguments, untouched in zip(
                samples(subject.folder).get(name, []), samples(subject.folder).get(name, []), strict=True
            ):
                call(hook, arguments)
                for key in set(arguments) - {"batch"}:  # arrays do not compare
                    same = repr(arguments[key]) == repr(untouched[key])
                    assert same, f"{name} must not change its argument '{key}'"


@async_test
async def test_two_runs_have_an_observer_each(subject: Subject) -> None:
    one, two = subject.build(run_id="r-1"), subject.build(run_id="r-2")
    async with one, two:
        for driver in (one, two):
            _, found = hooks_of(driver)
            for name, hook in found.items():
                for arguments in samples(subject.folder).get(name, []):
                    call(hook, arguments)


@async_test
async def test_a_whole_run_leaves_nothing_open(subject: Subject) -> None:
    for _ in range(2):
        driver = subject.build()
        async with driver:
            _, found = hooks_of(driver)
            for name in ("ale_run_started", "ale_step_finished", "ale_run_finished"):
                for arguments in samples(subject.folder)[name] if name in found else []:
                    call(found[name], arguments)
        await driver.close()
