"""Demonstrations for the supervised stages: made now by the task source's demonstrator, or recorded before.

1. `run_demonstrations` really runs every command in a sandbox and computes every reward.
2. `read_demonstrations` takes from a run folder every trajectory of the split `train` that was not rejected, whoever
   made it, and from anything else what a reader returns. A reader is a function in the entry-point group `ale.readers`
   under the name of its format: `recording` of ale-endpoint reads what `ale endpoint serve` writes, `rows` of
   ale-plugin-data reads JSONL, CSV, Parquet, folders of Hugging Face datasets and names of the hub (`org/name`).
3. The first reader that returns a trajectory is the right one: its errors are reported, and no other is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

from ale.errors import AleError, ConfigError
from ale.rollout.episode import DEMONSTRATIONS_STAGE, StageInfo
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import ChatTokenizer
from ale.specs.algorithm import RolloutRequest
from ale.specs.start import Demonstration
from ale.store.run_store import DB_NAME, RunStore
from ale.task import TRAIN
from ale.trajectory import Trajectory
from ale_train.batches.retokenization import retokenize
from ale_train.workbench.workbench import Workbench

READERS = "ale.readers"
Reader = Callable[[Path, ChatTokenizer, ReplyForm | None, Sequence[Any]], Iterable[Trajectory]]
"""A reader yields the trajectories of a file or folder in the tokenizer's tokens; the last argument are the tools of
conversations that name none. It raises `ConfigError` for any other
format before it yields one."""


async def run_demonstrations(bench: Workbench, count: int) -> list[Trajectory]:
    """Run `count` demonstrations by the task source's demonstrator. Raises `ConfigError` if the source has none."""
    requests = []
    tasks = bench.take_tasks(TRAIN)
    for i in range(count):
        task = next(tasks)
        seed = bench.config.seed * 1_000_003 + i
        demonstrator = partial(bench.tasks.demonstrator, task, seed)
        if demonstrator() is None:
            raise ConfigError(
                f"The task source '{bench.config.tasks.use}' has no demonstrator for the task '{task.id}'; "
                "leave out 'sft' and start from a trained model (model.path), or use a task source that has one."
            )
        requests.append(RolloutRequest(task, f"demo.{i}", seed, Demonstration(demonstrator)))
    bench.progress.stage("demonstrations", count)
    with bench.stopwatch("demonstrations"):
        done = await bench.rollouts.run(requests, StageInfo(DEMONSTRATIONS_STAGE, 0, TRAIN, temperature=1.0))
    if not done:
        raise AleError(
            f"No demonstration could be run: {bench.store.reasons(DEMONSTRATIONS_STAGE, 0)}. The trajectories of the "
            "run say more."
        )
    return done


def read_demonstrations(
    paths: Sequence[Path],
    tokenizer: ChatTokenizer,
    form: ReplyForm | None = None,
    *,
    key: str = "sft.demonstrations.data",
    tools: Sequence[Any] = (),
    most: int | None = None,
) -> list[Trajectory]:
    """Read the demonstrations of run folders and recordings, in tokens of `tokenizer`, at most `most` of each. Raises
    `ConfigError`, which names `key`, also if one of them has no demonstration."""
    check_paths(paths, key)
    found: list[Trajectory] = []
    for path in paths:
        if not (path / DB_NAME).is_file():
            found += _read(path, tokenizer, form, key, tools, most)
        elif made := [*islice(_of_run(path, tokenizer, form), most)]:
            found += made
        else:
            raise ConfigError(f"{key}: {path} holds no trajectory of the split '{TRAIN}' that could be used.")
    return found


def check_paths(paths: Sequence[Path], key: str) -> None:
    """Refuse what neither exists nor may be a name on the hub. Raises `ConfigError`, which names `key`."""
    for path in paths:
        if not path.exists() and not _may_be_hub_name(path):
            raise ConfigError(
                f"{key}: there is no run folder, recording or data set {path} (looked for in {Path.cwd()})."
            )


def _may_be_hub_name(path: Path) -> bool:
    """Return whether a path that does not exist may be the name of a data set on the Hugging Face hub."""
    return not path.is_absolute() and len(path.parts) == 2 and not path.suffix and path.parts[0] not in (".", "..")


def _of_run(folder: Path, tokenizer: ChatTokenizer, form: ReplyForm | None) -> Iterator[Trajectory]:
    with RunStore.open(folder) as store:
        for trajectory in store.trajectories("split = ? AND rejected IS NULL", (TRAIN,)):
            yield retokenize(trajectory, tokenizer, form)


def _read(
    path: Path, tokenizer: ChatTokenizer, form: ReplyForm | None, key: str, tools: Sequence[Any], most: int | None
) -> list[Trajectory]:
    """Return what the first suitable reader returns. Raises `ConfigError` if there is none, or nothing to read."""
    refusals = [f"{path} is not a run folder."] if path.is_dir() else []
    for entry in sorted(metadata.entry_points(group=READERS)):
        read: Reader = entry.load()
        made: list[Trajectory] = []
        try:
            for trajectory in islice(read(path, tokenizer, form, tools), most):
                made.append(trajectory)
            if made:
                return made
            refusals.append(f"{path} holds no answered call.")
        except ConfigError as error:
            if made:
                raise ConfigError(f"{key}: {error}") from error
            refusals.append(str(error))
    if len(refusals) <= path.is_dir():
        refusals.append(
            f"no installed package reads {path}: `pip install ale-plugin-data` brings the reader of data sets, `pip "
            "install ale-endpoint` that of recordings."
        )
    raise ConfigError("\n".join(f"{key}: {refusal}" for refusal in refusals))
