"""`dir(ale)` shows what is public, and public objects have texts of a line."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import ale
from ale.messages import Message
from ale.specs.choice import PluginChoice
from ale.specs.engine import Generation
from ale.specs.sandbox import SandboxSpec
from ale.task import Task
from ale.trajectory import Score

TRAINING = {"Result", "evaluate", "evaluate_async", "read_run", "run", "run_async"}


@pytest.mark.parametrize("is_there", [True, False])
def test_the_names_of_the_package_are_those_that_can_be_used(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if is_there else None)
    assert set(dir(ale)) - TRAINING == {"__version__", *ale.__all__}
    assert set(dir(ale)) >= TRAINING if is_there else TRAINING.isdisjoint(dir(ale))
    assert ale.Task is Task
    assert ale.Score is Score


def test_a_name_that_is_not_there_says_what_is_or_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AttributeError, match=r"module 'ale' has no attribute 'runs'; it has AleError, .*, run, "):
        _ = ale.runs  # type: ignore[attr-defined]

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(ale.importlib, "import_module", missing)
    with pytest.raises(AttributeError, match=r"ale\.run comes with the package ale-train: `pip install ale-train`"):
        _ = ale.run


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Message("user", "hi"), "Message(role='user', content='hi')"),
        (Score(0.5, False, parts={"a": 1.0}), "Score(value=0.5, passed=False, parts={'a': 1.0})"),
        (Generation(tuple(range(500)), (), (), "stop"), "Generation(token_ids=<500>, finish_reason='stop')"),
        (Task(id="t", instruction="go", files={str(n): "x" for n in range(9)}), None),
        (SandboxSpec(id="s", files={"a": b"x" * 10_000}), None),
        (PluginChoice(use="wandb", settings={"key": "secret"}), "PluginChoice(use='wandb', key=...)"),
    ],
)
def test_texts_are_short_and_hold_no_secrets(value: object, text: str | None) -> None:
    assert text is None or repr(value) == text
    assert len(repr(value)) < 200
    assert "secret" not in f"{value} {value!r}"
    assert "\n" not in repr(value)


def test_arrays_show_their_shape() -> None:
    assert repr(Message("user", np.zeros((2, 3)))) == "Message(role='user', content=<2x3>)"  # type: ignore[arg-type]
