"""The settings of the task source `jsonl`."""

from __future__ import annotations

import math

from pydantic import Field, model_validator

from ale.specs.driver import PluginConfig
from ale.task import HELDOUT, TRAIN
from ale_data.columns import Columns

DEFAULT_SHARES = {HELDOUT: 0.1}


class DataConfig(PluginConfig):
    """Settings of the task source `jsonl`."""

    path: str | None = Field(
        None,
        description="The data: a file (.jsonl, .csv, .tsv, .parquet), a folder of Hugging Face datasets, or a name of "
        "the Hugging Face hub, such as openai/gsm8k. A relative path starts where the command runs.",
    )
    files: dict[str, tuple[str, ...] | str] = Field(
        default_factory=dict, description="Instead of path: the file of each split, or several: train: [a.csv, b.csv]."
    )
    subset: str | None = Field(None, description="Subset (configuration) of a data set of the hub.")
    revision: str | None = Field(None, description="Revision of a data set of the hub: a branch, a tag, a commit.")
    columns: Columns = Field(Columns(), description="Which column of the data is what.")
    shares: dict[str, float] | None = Field(
        None,
        description="Splits by share: heldout: 0.1; the rest is train. null: a tenth is held out of data in path that "
        "have no splits of their own; {}: nothing is.",
    )
    splits: dict[str, str] = Field(
        default_factory=dict,
        description="What the data call a split: heldout: test. Without it a split has its own name, and 'heldout' is "
        "also found as test, validation, valid, val, dev or eval.",
    )
    shuffle: bool = Field(True, description="Shuffle each split, once; false: in the order of the data.")
    seed: int = Field(0, ge=0, description="Seed of the shuffle and of the shares; the run's own seed changes neither.")
    limit: int | None = Field(None, gt=0, description="Most tasks of each split, after the shuffle; null: all.")

    @model_validator(mode="after")
    def _fits_together(self) -> DataConfig:
        if (self.path is None) == (not self.files):
            raise ValueError("give either 'path', or 'files' with a file for each split (files: {train: a.jsonl})")
        if self.files and (self.shares or self.columns.split):
            other = "columns.split" if self.columns.split else "shares"
            raise ValueError(f"'files' says which rows are in which split, and so does '{other}'; leave one out")
        if self.shares and self.columns.split:
            raise ValueError("'columns.split' says which rows are in which split, and so does 'shares'; leave one out")
        if not all(self.files.values()):
            raise ValueError("each split in 'files' needs at least one file")
        if any(not (0 < share <= 1) for share in (self.shares or {}).values()):
            raise ValueError("each share must be above 0 and at most 1, such as shares: {heldout: 0.1}")
        total = math.fsum((self.shares or {}).values())
        if total > 1 + 1e-9 or (TRAIN in (self.shares or {}) and total < 1 - 1e-9):
            raise ValueError(
                f"the shares add up to {total:g}, and all rows are 1; leave 'train' out to give it the rest"
            )
        return self

    @property
    def shares_without_rest(self) -> dict[str, float]:
        """The shares without that of `train`, which is what they leave."""
        shares = DEFAULT_SHARES if self.shares is None else self.shares
        return {name: share for name, share in shares.items() if name != TRAIN}

    def paths_by_split(self) -> dict[str, tuple[str, ...]]:
        """Return `files` with a tuple of files for each split."""
        return {name: (paths,) if isinstance(paths, str) else paths for name, paths in self.files.items()}
