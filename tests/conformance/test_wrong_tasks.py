"""Deliberately wrong sources of tasks: each breaks one rule of the contract, and the kit says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong import Wrong, assert_found

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]

TASKS = (
    "from ale_bash import BashTasks\nfrom ale.errors import ConfigError\nimport itertools, random\n"
    "class Fixed(BashTasks):\n"
)

WRONG = {
    "held-out tasks are trained on": Wrong(
        "tasks",
        TASKS
        + """
    def tasks(self, split):
        return super().tasks("train" if split == "heldout" else split)
""",
        "test_ids_are_unique_and_the_splits_share_none",
        "held-out tasks must not be trained on",
    ),
    "another order each time": Wrong(
        "tasks",
        TASKS
        + """
    def tasks(self, split):
        some = list(itertools.islice(super().tasks(split), 60))
        random.shuffle(some)
        return some
""",
        "test_the_same_settings_give_the_same_tasks",
        "must be the same each time, in one order",
    ),
    "any split will do": Wrong(
        "tasks",
        TASKS
        + """
    def tasks(self, split):
        return super().tasks(split if split in ("train", "heldout") else "train")
""",
        "test_an_unknown_split_is_refused",
        "a split that there is not: it must raise ConfigError",
    ),
    "a solution that does not solve": Wrong(
        "tasks",
        TASKS
        + """
    def tasks(self, split):
        return (t.model_copy(update={"solution": "true"}) for t in super().tasks(split))
""",
        "test_reference_solutions_solve_their_tasks",
        "must pass its tests",
    ),
    "a task that no file can hold": Wrong(
        "tasks",
        TASKS
        + """
    def tasks(self, split):
        return (t.model_copy(update={"metadata": {"pair": (1, 2)}}) for t in super().tasks(split))
""",
        "test_tasks_can_be_written_to_a_file_and_read_back",
        "must survive JSON unchanged",
    ),
    "a test file outside its folder": Wrong(
        "tasks",
        TASKS
        + """
    def tasks(self, split):
        for t in super().tasks(split):
            yield t.model_copy(update={"tests": t.tests.model_copy(update={"files": {"../x": b"\\xff"}})})
""",
        "test_tasks_can_be_written_to_a_file_and_read_back",
        "files stay in their folder, not ../x",
    ),
    "a demonstrator that is none": Wrong(
        "tasks",
        TASKS
        + """
    def demonstrator(self, task, seed):
        return object()
""",
        "test_a_source_of_demonstrations_has_a_demonstrator_that_replies",
        "a demonstrator is a coroutine function of messages and tools",
    ),
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    assert_found(WRONG[what], tmp_path)
