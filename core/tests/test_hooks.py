"""Observers: whatever they do, the run goes on, and a veto that fails is a refusal."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from ale.errors import PluginError
from ale.registry.hooks import Hooks
from ale.specs.events import hookimpl


class Recording:
    """Hears, and may raise."""

    def __init__(self, error: BaseException | None = None, answer: str | None = None) -> None:
        self.heard: list[str] = []
        self.error, self.answer = error, answer

    @hookimpl
    def ale_run_finished(self, run_id: str) -> None:
        self.heard.append(run_id)
        if self.error:
            raise self.error

    @hookimpl
    def ale_before_exec(self, command: str) -> str | None:
        self.heard.append(command)
        if self.error:
            raise self.error
        return self.answer


def exec_refusal(hooks: Hooks) -> str | None:
    return hooks.veto_reason("ale_before_exec", sandbox_id="s", task=None, command="rm -rf /")


def test_without_observers_nothing_is_watched_and_nothing_refused() -> None:
    hooks = Hooks()
    assert not hooks.has_implementation("ale_before_exec")
    assert exec_refusal(hooks) is None
    hooks.call("ale_run_finished", run_id="r", summary={})


@pytest.mark.parametrize(
    "error", [ValueError("spam"), SystemExit(1), AssertionError(), asyncio.CancelledError(), GeneratorExit()]
)
def test_an_observer_that_raises_is_logged_and_the_others_hear(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Recording(error), Recording()
    for order in ([("bad", bad), ("good", good)], [("good", good), ("bad", bad)]):
        Hooks(order).call("ale_run_finished", run_id="r", summary={})
    assert good.heard == ["r", "r"]
    assert f"the observer 'bad' failed in ale_run_finished: {type(error).__name__}" in caplog.text


def test_ctrl_c_in_an_observer_is_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        Hooks([("x", Recording(KeyboardInterrupt()))]).call("ale_run_finished", run_id="r", summary={})


def test_the_first_refusal_counts() -> None:
    assert exec_refusal(Hooks([("a", Recording()), ("b", Recording(answer="No."))])) == "No."
    assert exec_refusal(Hooks([("a", Recording()), ("b", Recording())])) is None


def test_a_veto_that_fails_refuses() -> None:
    hooks = Hooks([("careful", Recording(RuntimeError("no rules")))])
    assert exec_refusal(hooks) == "the observer 'careful' failed: RuntimeError: no rules"


@pytest.mark.parametrize("answer", [False, True, "", 1])
def test_a_veto_that_answers_with_no_sentence_refuses_and_says_so(answer: object) -> None:
    hooks = Hooks([("odd", Recording(answer=answer))])  # type: ignore[arg-type]
    assert exec_refusal(hooks) == (
        f"the observer 'odd' failed: TypeError: it returned {answer!r}, not None or a sentence"
    )


@hookimpl
def ale_run_finnished(run_id: str) -> None: ...


@hookimpl
def ale_run_finished(nobody: str) -> None: ...


@hookimpl(wrapper=True)
def ale_before_exec(command: str):  # type: ignore[no-untyped-def]
    return (yield)


@hookimpl
async def ale_run_started(run_id: str) -> None: ...


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (ale_run_finnished, "Did you mean 'ale_run_finished'?"),
        (ale_run_finished, "nobody"),
        (ale_before_exec, "cannot be wrapped"),
        (ale_run_started, "write 'def'"),
    ],
)
def test_an_observer_whose_hooks_do_not_fit_is_refused_by_name(hook: object, reason: str) -> None:
    bad, good = SimpleNamespace(**{getattr(hook, "__name__", ""): hook}), Recording()
    hooks = Hooks([("good", good)])
    with pytest.raises(PluginError, match=f"The observer 'bad' does not fit the hooks of ALE: .*{reason}"):
        hooks.register("bad", bad)
    hooks.call("ale_run_finished", run_id="r", summary={})
    assert exec_refusal(hooks) is None
    assert good.heard == ["r", "rm -rf /"]


def test_an_observer_that_failed_three_times_is_told_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Recording(ValueError("spam")), Recording()
    hooks = Hooks([("bad", bad), ("good", good)])
    for i in range(5):
        hooks.call("ale_run_finished", run_id=str(i), summary={})
    assert bad.heard == ["0", "1", "2"]
    assert good.heard == ["0", "1", "2", "3", "4"]
    assert caplog.text.count("ValueError: spam") == 3
    assert caplog.text.count("Only its veto hooks are called from now on.") == 1


def test_a_veto_is_asked_however_often_it_failed() -> None:
    careful = Recording(RuntimeError("no rules"))
    hooks = Hooks([("careful", careful)])
    for i in range(4):
        hooks.call("ale_run_finished", run_id=str(i), summary={})
    assert all(exec_refusal(hooks) for _ in range(5)), "an error in a veto is a refusal, also after three"
