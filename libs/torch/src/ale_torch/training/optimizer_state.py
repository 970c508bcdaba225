"""The optimizer's state in a checkpoint: its moments, and the parameters where the saved weights do not determine them
(wider masters, adapters).

It is written by `torch.distributed.checkpoint`: each rank writes what it holds, and any number of ranks can read it.
Entries are named by the parameters (`model.norm.weight/exp_avg`), so that no order has to be the same, and another
trainer can read them too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ale.errors import ConfigError, TrainerError

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""The state that AdamW has for each parameter that had a gradient."""
MASTER = "master"

Shapes = dict[str, tuple[int, ...]]


def write_entries(folder: Path, entries: dict[str, Tensor]) -> None:
    """Write this rank's tensors into `folder`; all ranks must call it."""
    with _quiet():
        save(entries, checkpoint_id=folder, no_dist=_alone())


def read_entries(folder: Path, choose: Callable[[Shapes], dict[str, Tensor]], expected: set[str] | None = None) -> None:
    """Read into the tensors that `choose` returns for the shapes of all entries; all ranks must call it.

    Raises `TrainerError` if the entries are not `expected` (by default those chosen) or of another shape,
    `ConfigError` if they cannot be read. What runs out of memory is raised as it is.
    """
    try:
        stored = FileSystemReader(folder).read_metadata().state_dict_metadata
        shapes = {name: tuple(getattr(metadata, "size", ())) for name, metadata in stored.items()}
        entries = choose(shapes)
        if set(shapes) != (expected or set(entries)) or any(shapes[n] != t.shape for n, t in entries.items()):
            raise TrainerError(
                f"The optimizer state in {folder} is not of this model, or not of trainer.dtype, trainer.lora and "
                "trainer.value_head; take the model's own checkpoint, or start from its weights alone (model.path)."
            )
        with _quiet():
            load(entries, checkpoint_id=folder, no_dist=_alone())
    except (TrainerError, MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, CheckpointException) as error:  # a damaged file raises many types
        raise ConfigError(f"{folder} cannot be read; the checkpoint is damaged, use an earlier one.") from error


def _alone() -> bool:
    return not torch.distributed.is_initialized()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library from warning that it works in one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
