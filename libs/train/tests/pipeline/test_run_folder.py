"""The folder of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

import ale_train
from ale.errors import ConfigError
from ale.store.run_store import RunStore


def test_no_run_begins_where_there_is_a_database_also_without_the_rest_of_a_run(tmp_path: Path) -> None:
    """A run that is killed at its very start leaves a database alone."""
    RunStore.create(tmp_path).close()
    config = {"tasks": "bash", "engine": {"use": "scripted", "answers": ["hi"]}, "trainer": None, "eval": {}}
    with pytest.raises(ConfigError, match=r"holds a run already; go on with it \(--resume\), give another --out"):
        ale_train.run(config, out=tmp_path, quiet=True)
