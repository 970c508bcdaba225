"""A task source that has nothing to give."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ale.errors import ConfigError
from ale.pipeline.workbench import Workbench

BENCH = SimpleNamespace(
    config=SimpleNamespace(tasks=SimpleNamespace(use="bash"), eval=SimpleNamespace(split="heldout")),
    tasks_once=lambda split: iter(()),
)


@pytest.mark.parametrize(
    ("split", "rest"), [("heldout", ", or name another split with eval.split."), ("train", "lists them).")]
)
def test_an_empty_split_says_which_setting_to_change(split: str, rest: str) -> None:
    with pytest.raises(ConfigError, match=f"'bash' has no tasks in its split '{split}': give it some") as told:
        next(Workbench.take_tasks(BENCH, split))  # type: ignore[arg-type]
    assert str(told.value).endswith(rest)
