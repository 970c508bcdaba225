"""What earlier labs have found, read from their `data.json`: the settings of a search, and runs that need not be made again.

A run is known where everything that it would be made with is the same (`Plan.settings`), and its seed. Run folders may then be
lost, and an experiment can be continued on another machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ValidationError

from ale.errors import ConfigError
from ale_lab.experiment import Experiment, Series
from ale_lab.intervals import Curve
from ale_lab.search import Choice

Cost = tuple[float, float]


class _Arm(BaseModel):
    settings: str
    series: dict[str, dict[int, Curve]]
    costs: dict[int, Cost] = {}


class _Data(BaseModel):
    seeds: list[int]
    arms: dict[str, _Arm]
    tuned: dict[str, Choice]


@dataclass(frozen=True, slots=True)
class Known:
    """Choices by arm; series and costs (seconds, rollouts; where they were kept) by settings and seed."""

    tuned: Mapping[str, Choice] = field(default_factory=dict)
    series: Mapping[tuple[str, int], Series] = field(default_factory=dict)
    costs: Mapping[tuple[str, int], Cost] = field(default_factory=dict)

    def choices(self, experiment: Experiment) -> dict[str, Choice] | None:
        """What a search found for each arm that the experiment tunes; None where one is missing."""
        wanted = [search.arm for search in experiment.searches]
        return {arm: self.tuned[arm] for arm in wanted} if all(arm in self.tuned for arm in wanted) else None

    def has(self, experiment: Experiment, settings: str, seed: int) -> bool:
        """Whether all that is shown of a run is known."""
        shown = {panel.series for panel in experiment.panels} | {column.series for column in experiment.columns}
        return shown <= self.series.get((settings, seed), {}).keys()


def read_known(paths: Iterable[Path]) -> Known:
    """What stands in some `data.json`; of a run that is in two, the later's. Raises `ConfigError`."""
    tuned: dict[str, Choice] = {}
    series: dict[tuple[str, int], Series] = {}
    costs: dict[tuple[str, int], Cost] = {}
    for path in paths:
        data = _read(path)
        for name, choice in data.tuned.items():
            if tuned.setdefault(name, choice) != choice:
                raise ConfigError(
                    f"--known {path} has other settings for '{name}' than a file before it; leave one out."
                )
        for arm in data.arms.values():
            costs |= {(arm.settings, seed): cost for seed, cost in arm.costs.items()}
            for seed in data.seeds:
                series[arm.settings, seed] = {
                    name: curves[seed] for name, curves in arm.series.items() if seed in curves
                }
    return Known(tuned, series, costs)


def _read(path: Path) -> _Data:
    try:
        return _Data.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--known {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"--known {path} is not the data.json of an `ale lab` experiment: {where}: {first['msg']}."
        ) from None
