"""This module reads demonstrations that exist already: trajectories of other runs, and files such as recordings.

1. From a run folder it takes every trajectory of the split `train` that was not rejected, whoever made it.
2. From a file it takes what a reader returns. A reader is a function in the entry-point group `ale.readers` under the
   name of its format; ale-endpoint has the reader `recording` for files that `ale endpoint serve` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from ale.errors import ConfigError
from ale.session.reply_format import ReplyForm
from ale.session.retokenization import retokenize
from ale.session.tokenizer import ChatTokenizer
from ale.store.run_store import RunStore
from ale.task import TRAIN
from ale.trajectory import Trajectory

READERS = "ale.readers"
Reader = Callable[[Path, ChatTokenizer, ReplyForm | None], Iterable[Trajectory]]
"""A reader returns a file's trajectories in the tokenizer's tokens. It raises `ConfigError` for any other format."""


def read_demonstrations(
    paths: Sequence[Path],
    tokenizer: ChatTokenizer,
    form: ReplyForm | None = None,
    *,
    key: str = "sft.demonstrations.data",
) -> list[Trajectory]:
    """Read the demonstrations of run folders and recordings, in tokens of `tokenizer`. Raises `ConfigError`, which
    names `key`, also if one of them has no demonstration."""
    found: list[Trajectory] = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{key}: there is no run folder or recording {path}.")
        made = [*_of_run(path, tokenizer, form)] if path.is_dir() else _of_file(path, tokenizer, form, key)
        if not made:
            what = f"trajectory of the split '{TRAIN}' that could be used" if path.is_dir() else "answered call"
            raise ConfigError(f"{key}: {path} holds no {what}.")
        found += made
    return found


def _of_run(folder: Path, tokenizer: ChatTokenizer, form: ReplyForm | None) -> Iterator[Trajectory]:
    with RunStore.open(folder) as store:
        for trajectory in store.trajectories("split = ? AND rejected IS NULL", (TRAIN,)):
            yield retokenize(trajectory, tokenizer, form)


def _of_file(path: Path, tokenizer: ChatTokenizer, form: ReplyForm | None, key: str) -> list[Trajectory]:
    """Return what the first suitable reader returns for the file. Raises `ConfigError` if no reader can read it."""
    refusals: list[str] = []
    for entry in sorted(metadata.entry_points(group=READERS)):
        read: Reader = entry.load()
        try:
            return [*read(path, tokenizer, form)]
        except ConfigError as error:
            refusals.append(str(error))
    if not refusals:
        raise ConfigError(
            f"{key}: {path} is a file, and no installed package reads files; `pip install ale-endpoint` brings the "
            "reader of recordings."
        )
    raise ConfigError("\n".join(refusals))
