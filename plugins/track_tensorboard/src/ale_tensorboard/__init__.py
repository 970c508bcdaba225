"""The observer `tensorboard`: writes each metric of `ale_step_finished` as the scalar `<stage>/<metric>`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ale.errors import ConfigError
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.events import Observer, hookimpl
from ale.store.output_files import check_folder

__all__ = ["TensorBoardTracker"]


FLUSH_S = 1
"""Numbers are on disk after at most so many seconds."""


class TensorBoardConfig(PluginConfig):
    """Settings of the observer `tensorboard`."""

    folder: Path | None = Field(
        None, description="Folder for event files, with one subfolder per run; null: 'tensorboard' in the run folder."
    )


class TensorBoardTracker(Observer):
    """Writes the metrics of a run for TensorBoard."""

    api_version = ">=1.0,<1.2"
    Config: ClassVar[type[PluginConfig]] = TensorBoardConfig
    config: TensorBoardConfig

    def __init__(self, config: TensorBoardConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self._writer: Any = None

    @property
    def folder(self) -> Path:
        """Where this run's event files go. Raises `ConfigError` outside a run where no folder is given."""
        if self.config.folder is not None:
            return self.config.folder / self.context.run_id
        if self.context.run_dir is None:
            raise ConfigError("The observer 'tensorboard' has no run folder to write to; give it a 'folder'.")
        return self.context.run_dir / "tensorboard"

    async def start(self) -> None:
        """Raise `ConfigError` if the folder that the run file gives cannot be made."""
        if self.config.folder is not None:
            check_folder(self.config.folder, "folder of the observer 'tensorboard'")

    @hookimpl
    def ale_step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics; TensorBoard shows numbers that are not finite as gaps."""
        if self._writer is None:  # only now: a run that is refused leaves no event file
            from tensorboardX import SummaryWriter

            # Its `flush` does not wait for what is still in its queue; its thread brings that to disk each
            # `flush_secs`.
            self._writer = SummaryWriter(str(self.folder), flush_secs=FLUSH_S)
        for name, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(f"{stage}/{name}", value, step)

    async def close(self) -> None:
        """Bring everything to disk."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
