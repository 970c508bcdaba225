"""The observer `mlflow`: a run of MLflow for each run.

1. It logs to a tracking server (`uri`, or MLFLOW_TRACKING_URI), or else into `mlflow.db` in the run folder.
2. A thread makes all calls (`sender.py`). One that fails is logged as a warning; the run goes on.
3. It ends in `close`, which is also called after a failure: as FINISHED, KILLED (interrupted) or FAILED.
4. Its id is kept in the run folder, so that a run which goes on stays one run there, too. Parameters cannot change
   there: they are those with which it began.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field

from ale.config.references import redact_data
from ale.errors import ConfigError
from ale.registry.validation import one_line_error
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.events import Observer, hookimpl
from ale.store.kept_text import KeptText
from ale.store.output_files import check_folder
from ale_mlflow.names import allowed_name, as_text, flatten, is_number
from ale_mlflow.sender import Sender

log = logging.getLogger("ale.mlflow")
REACH_S = 5
"""The time within which a server must answer at the beginning; MLflow itself would try for minutes."""
CLOSE_S = 30
"""The most that a run waits, at its end, for what is still to be sent."""
MOST_METRICS, MOST_PARAMETERS = 1000, 100
"""The limits of one call of `log_batch`."""
RUN_ID = "mlflow_run_id"
"""The file in the run folder with the id of MLflow's run."""
LONGEST_REASON = 300
"""Characters of an error in a warning: some hold a whole page of a server."""
STATUSES = {"completed": "FINISHED", "interrupted": "KILLED"}
MEND = (
    "Check the observer's uri (or MLFLOW_TRACKING_URI) and the login (MLFLOW_TRACKING_TOKEN, or "
    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD), or set its mode to offline; run.db has all numbers."
)


class MlflowConfig(PluginConfig):
    """Settings of the observer `mlflow`."""

    project: str = Field("ale", min_length=1, description="Experiment, which is made if there is none of the name.")
    name: str | None = Field(None, description="Name of the run; null: the run's id.")
    tags: dict[str, str] = Field({}, description="Tags of the run: name -> value.")
    group: str | None = Field(None, description="Value of the tag 'group', such as the name of an experiment's seeds.")
    mode: Literal["online", "offline"] | None = Field(
        None, description="offline: into mlflow.db in 'dir'; null: online where 'uri' or MLFLOW_TRACKING_URI is set."
    )
    uri: str | None = Field(None, description="Address of the tracking server; null: MLFLOW_TRACKING_URI.")
    dir: Path | None = Field(None, description="Folder of mlflow.db, which several runs may share; null: run folder.")


class MlflowTracker(Observer):
    """Logs a run's settings, metrics and result to MLflow."""

    api_version = ">=1.0,<1.2"
    Config: ClassVar[type[PluginConfig]] = MlflowConfig
    config: MlflowConfig

    def __init__(self, config: MlflowConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self._sender: Sender | None = None
        self._client: Any = None
        self._run_id = ""
        self._kept: KeptText | None = None
        self._status = "FAILED"

    async def start(self) -> None:
        """Raise `ConfigError` if the folder that the run file gives cannot be made."""
        if self.config.dir is not None:
            check_folder(self.config.dir, "folder of the observer 'mlflow'")

    @hookimpl
    def ale_run_started(self, run_id: str, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin the run, with the configuration as its parameters."""
        self._sender = Sender(self._report)
        self._sender.send(partial(self._begin, run_id, run_dir, self._redact(config)))

    @hookimpl
    def ale_step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Log the finite metrics of the step."""
        if self._sender is not None:
            figures = {f"{stage}/{name}": value for name, value in metrics.items() if is_number(value)}
            self._sender.send(partial(self._log_metrics, figures, step, int(time.time() * 1000)))

    @hookimpl
    def ale_run_finished(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """Log the summary: its numbers as metrics, how the run ended as tags."""
        self._status = STATUSES.get(str(summary.get("status")), "FAILED")
        if self._sender is not None:
            self._sender.send(partial(self._log_summary, self._redact(summary), int(time.time() * 1000)))

    async def close(self) -> None:
        """End the run, and wait at most `CLOSE_S` seconds for what is still to be sent."""
        sender, self._sender = self._sender, None
        if sender is not None and not await asyncio.to_thread(sender.close, self._end, CLOSE_S):
            log.warning("mlflow did not take all of this run within %d s. %s", CLOSE_S, MEND)
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _begin(self, run_id: str, run_dir: Path, config: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient  # only now: it takes 1.5 s
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import is_tracking_uri_set

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it would announce each table
        uri, artifacts = self.config.uri, None
        if self.config.mode == "offline" or (self.config.mode is None and uri is None and not is_tracking_uri_set()):  # type: ignore[no-untyped-call]
            folder = (self.config.dir or run_dir).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            uri, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "mlartifacts").as_uri()
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        _check_reachable(self._client.tracking_uri)
        try:
            experiment = self._client.create_experiment(self.config.project, artifact_location=artifacts)
        except MlflowException:  # most often it is there already
            found = self._client.get_experiment_by_name(self.config.project)
            if found is None:
                raise
            experiment = found.experiment_id
        tags = dict(self.config.tags) | ({"group": self.config.group} if self.config.group else {})
        self._kept = self._kept or KeptText(run_dir, RUN_ID)
        known = self._kept.read()
        run = self._go_on(known) if known else None
        if run is None:
            run = self._client.create_run(experiment, run_name=self.config.name or run_id, tags=tags)
            self._kept.write(run.info.run_id)
        self._run_id = run.info.run_id
        every = ((allowed_name(name), as_text(value)) for name, value in flatten(config, "."))
        parameters = [Param(name, value) for name, value in every if name not in run.data.params]
        for some in _in_parts(parameters, MOST_PARAMETERS):
            self._client.log_batch(self._run_id, params=some)

    def _go_on(self, run_id: str) -> Any:
        """Return the run of an earlier part, which runs again; None if it is not there any more."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.update_run(run_id, status="RUNNING")
            run = self._client.get_run(run_id)
            for name in {"status", "error"} & run.data.tags.keys():
                self._client.delete_tag(run_id, name)
            return run
        except MlflowException:
            return None

    def _log_metrics(self, figures: Mapping[str, float], step: int, milliseconds: int) -> None:
        from mlflow.entities import Metric

        if not self._run_id:
            return  # it could not begin, which is reported already
        metrics = [Metric(allowed_name(name), float(value), milliseconds, step) for name, value in figures.items()]
        for some in _in_parts(metrics, MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=some)

    def _log_summary(self, summary: Mapping[str, Any], milliseconds: int) -> None:
        flat = dict(flatten(summary, "/"))
        self._log_metrics({f"summary/{n}": v for n, v in flat.items() if is_number(v)}, 0, milliseconds)
        for name in ("status", "error"):
            if self._run_id and flat.get(name):
                self._client.set_tag(self._run_id, name, as_text(flat[name]))

    def _end(self) -> None:
        if self._run_id:
            self._client.set_terminated(self._run_id, self._status)

    def _report(self, error: Exception) -> None:
        reason = self.context.channel.redact(one_line_error(error))
        log.warning("mlflow could not log a part of this run: %s. %s", reason[:LONGEST_REASON], MEND)

    def _redact(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return redact_data(data, self.context.channel.redact)


def _check_reachable(uri: str) -> None:
    """Raise `ConfigError` if no server is at an HTTP address."""
    import requests

    if not uri.startswith(("http://", "https://")):
        return
    try:
        requests.head(uri, timeout=REACH_S)
    except requests.exceptions.SSLError:
        return  # MLflow has settings of its own for certificates, and says what is wrong with them
    except requests.exceptions.RequestException as error:
        place = urlsplit(uri).netloc.rpartition("@")[2]
        raise ConfigError(f"there is no tracking server at {place} ({type(error).__name__})") from error


def _in_parts(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    return (items[i : i + most] for i in range(0, len(items), most))
