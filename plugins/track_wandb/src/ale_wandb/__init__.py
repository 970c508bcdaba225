"""The observer `wandb`: a run of Weights & Biases for each run.

1. It begins with `ale_run_started`. If wandb cannot log in or reach its server, it begins offline instead, and a
   warning says how to bring its files to the server later. Its id is kept in the run folder, so that a run which goes
   on stays one run there, too.
2. A metric is logged as `<stage>/<metric>`, over an axis `<stage>/step` of its own, because wandb's own step may only
   grow, and the stages of a run each count theirs.
3. It ends in `close`, which is also called after a failure: with exit code 0 for a completed run and 1 for all others.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import wandb
from pydantic import Field

from ale.config.references import redact_data
from ale.errors import ConfigError
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.events import Observer, hookimpl
from ale.store.kept_text import KeptText
from ale.store.output_files import check_folder

__all__ = ["WandbTracker"]

log = logging.getLogger("ale.wandb")
START_S = 20
"""The most that a run waits for wandb's server at its beginning, after some 10 s for the login."""
RUN_ID = "wandb_run_id"
"""The file in the run folder with the id of wandb's run."""
FINISH_S = 60
"""The most that a run waits, at its end, for what is still to be uploaded."""


class WandbConfig(PluginConfig):
    """Settings of the observer `wandb`."""

    project: str = Field("ale", description="Project, or entity/project.")
    name: str | None = Field(None, description="Name of the run; null: the run's id.")
    tags: tuple[str, ...] = Field((), description="Tags of the run.")
    group: str | None = Field(None, description="Group that the run belongs to, such as an experiment's seeds.")
    mode: Literal["online", "offline", "disabled"] | None = Field(
        None, description="offline: write files for `wandb sync`; null: as WANDB_MODE says, or online."
    )
    dir: Path | None = Field(None, description="Folder for wandb's files; null: the run folder.")


class WandbTracker(Observer):
    """Logs a run's settings, metrics and result to Weights & Biases."""

    api_version = ">=1.0,<1.2"
    Config: ClassVar[type[PluginConfig]] = WandbConfig
    config: WandbConfig

    def __init__(self, config: WandbConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self._run: Any = None
        self._kept: KeptText | None = None
        self._completed = False

    async def start(self) -> None:
        """Raise `ConfigError` if the folder that the run file gives cannot be made."""
        if self.config.dir is not None:
            check_folder(self.config.dir, "folder of the observer 'wandb'")

    @hookimpl
    def ale_run_started(self, run_id: str, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin the run, offline if wandb cannot log in or reach its server."""
        shown = self._redact(config)
        mode = self.config.mode or wandb.setup().settings.mode
        try:
            if mode == "online" and not wandb.login(prompt=False, verify=True):  # `init` would ask at the terminal
                raise ConfigError("there is no API key: run `wandb login`, or set WANDB_API_KEY")
            self._run = self._begin(mode, run_id, run_dir, shown)
        except Exception as error:  # the library has several kinds of them for a server that it cannot use
            if mode != "online":
                raise
            reason = self.context.channel.redact(str(error).partition("\n")[0].rstrip("."))
            self._run = self._begin("offline", run_id, run_dir, shown)
            log.warning(
                "wandb logs this run to files, because it cannot log in or reach its server (%s). Mend that, and bring "
                "them there with `wandb sync %s`; or set the observer's mode to offline.",
                reason,
                self._run.settings.sync_dir,
            )
        if not self._run.offline and self._run.url:
            self.context.channel.event("note", text=f"wandb: {self._run.url}")

    @hookimpl
    def ale_step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Log the finite metrics of the step."""
        if self._run is not None:
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
            figures = {f"{stage}/{name}": value for name, value in metrics.items() if math.isfinite(value)}
            self._run.log({f"{stage}/step": step, **figures})

    @hookimpl
    def ale_run_finished(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """Log the summary, and note how the run ended."""
        self._completed = summary.get("status") == "completed"
        if self._run is not None:
            self._run.summary.update(self._redact(summary))

    async def close(self) -> None:
        """End the run. What is not uploaded within `FINISH_S` seconds stays in its files, with a warning."""
        run, self._run = self._run, None
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()
        if run is None:
            return
        try:
            await asyncio.to_thread(run.finish, exit_code=int(not self._completed))
        except TimeoutError:
            log.warning(
                "wandb could not upload all of this run within %d s; `wandb sync %s` brings the rest to the server.",
                FINISH_S,
                run.settings.sync_dir,
            )
        finally:
            if wandb.setup().most_recent_active_run is None:  # another run of this process may still use it
                await asyncio.to_thread(wandb.teardown)  # ends the library's own process

    def _begin(self, mode: str, run_id: str, run_dir: Path, config: dict[str, Any]) -> Any:
        entity, _, project = self.config.project.rpartition("/")
        folder = self.config.dir or run_dir
        folder.mkdir(parents=True, exist_ok=True)  # wandb would take a temporary folder in its place
        settings = wandb.Settings(
            console="off",  # the run's display goes on as it is, and nothing that is printed leaves the machine
            silent=True,
            disable_code=True,
            init_timeout=START_S,
            finish_timeout=FINISH_S,
            finish_timeout_raises=True,
        )
        self._kept = self._kept or (None if mode == "disabled" else KeptText(run_dir, RUN_ID))
        known = self._kept.read() if self._kept is not None else ""
        begun = wandb.init(
            id=known or None,  # None: the library's own choice
            resume="allow" if known else None,
            entity=entity or None,
            project=project,
            name=self.config.name or run_id,
            tags=self.config.tags,
            group=self.config.group,
            dir=folder,
            mode=mode,  # type: ignore[arg-type]
            config=config,
            reinit="create_new",  # runs beside each other in one process each have their own
            settings=settings,
        )
        if self._kept is not None and not known:
            self._kept.write(begun.id)
        return begun

    def _redact(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return redact_data(data, self.context.channel.redact)
