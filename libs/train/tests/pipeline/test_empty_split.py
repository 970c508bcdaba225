"""A task source that has nothing to give."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ale.errors import ConfigError
from ale_train.workbench.workbench import Workbench

BENCH = SimpleNamespace(
    config=SimpleNamespace(tasks=SimpleNamespace(use="bash")),
    tasks_once=lambda split: iter(()),
)


def test_an_empty_split_says_which_setting_to_change() -> None:
    with pytest.raises(ConfigError, match="'bash' has no tasks in its split 'train': give it some with its settings"):
        next(Workbench.take_tasks(BENCH, "train"))  # type: ignore[arg-type]
