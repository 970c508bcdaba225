"""What `ale lab simulate` draws: three ways to use machines, and how far sampling may be ahead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from ale.config.yaml_text import parse_yaml
from ale.errors import ConfigError
from ale.registry.validation import validate
from ale.specs.driver import PluginConfig
from ale_lab.figure import DPI, write_figure
from ale_lab.simulation.loop import Machines, Simulation, TrainerSpeed
from ale_lab.simulation.workload import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS, WARM = 20, 4
"""The first steps fill the buffer, and are not counted."""
RATIOS = (0, 1, 2, 3, 4, 6, 8)
SHOWN_S = 600.0
COLORS = {
    "wait_data": "#e5e7eb",
    "logprobs": "#d97706",
    "update": "#2563eb",
    "publish": "#dc2626",
    "switch": "#7c3aed",
    "drain": "#f9a8d4",
}


class Scenario(PluginConfig):
    """What is simulated: a file of `ale lab simulate --scene`. The defaults are those of the documentation."""

    machines: Machines = Field(
        Machines(2, 2), description="`engines` sample and `lent` train; each is one engine when it samples."
    )
    trainer: TrainerSpeed = Field(TrainerSpeed(5.0, 1e-5), description="How fast the machines that train are.")
    workload: Workload = Field(Workload(), description="The groups of a step, and what an episode does.")

    @model_validator(mode="after")
    def _some_of_each(self) -> Scenario:
        counts = {
            "machines.engines": self.machines.engines,
            "machines.lent": self.machines.lent,
            "workload.prompts": self.workload.prompts,
            "workload.group_size": self.workload.group_size,
        }
        for key, count in counts.items():
            if count < 1:
                raise ValueError(f"{key} is {count}, and must be at least 1")
        return self


def read_scenario(path: Path) -> Scenario:
    """Read a scene from a YAML file. Raises `ConfigError`."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text.") from None
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must have keys: {', '.join(Scenario.model_fields)}.")
    try:
        return validate(Scenario, data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix('The run file: ')}") from None


@dataclass(frozen=True, slots=True)
class Summary:
    """A simulated way, in numbers: mean seconds of a step, shares of time, versions."""

    name: str
    step_s: float
    trainer_waits: float
    engines_busy: float
    staleness: float
    staleness_max: int


def ways(scene: Scenario) -> dict[str, Simulation]:
    """Return the three ways, which have run. All machines together train as much faster as they are more."""
    workload, separate, trainer = scene.workload, scene.machines, scene.trainer
    share = separate.lent / (separate.engines + separate.lent)
    faster = replace(trainer, seconds_a_token=trainer.seconds_a_token * share)
    found = {
        "synchronous": Simulation(workload, separate, faster, STEPS),
        "asynchronous": Simulation(workload, separate, trainer, STEPS, 2),
        "multiplexed": Simulation(workload, separate, trainer, STEPS, 2, multiplexed=True),
    }
    for simulation in found.values():
        simulation.run()
    return found


def curve(ahead: int, scene: Scenario) -> dict[int, Simulation]:
    """Return runs by `async_ratio`, with sampling at most so far `ahead`; with 0 they take turns."""
    machines = replace(scene.machines, lent=0)
    runs = {
        r: Simulation(
            workload=scene.workload,
            machines=machines,
            trainer=scene.trainer,
            steps_wanted=STEPS,
            async_ratio=r,
            ahead=min(ahead, r),
        )
        for r in RATIOS
    }
    for simulation in runs.values():
        simulation.run()
    return runs


def summarize(name: str, simulation: Simulation) -> Summary:
    """Return the numbers of a run without its first steps."""
    steps = simulation.steps
    seconds = steps[-1].end - steps[WARM - 1].end
    ages = [age for step in steps[WARM:] for age in step.ages]
    engines = simulation.engines
    busy = sum(engine.busy_s for engine in engines) / len(engines) / steps[-1].end
    waits = sum(step.wait_s for step in steps[WARM:]) / seconds
    return Summary(
        name=name,
        step_s=seconds / (len(steps) - WARM),
        trainer_waits=waits,
        engines_busy=busy,
        staleness=fmean(ages),
        staleness_max=max(ages),
    )


def table(summaries: list[Summary]) -> str:
    """Return a Markdown table; the speed-up is against the first one."""
    lines = [
        "| | step | speed-up | trainer waits | engines busy | staleness, mean | largest |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for s in summaries:
        cells = (s.name, f"{s.step_s:.0f} s", f"{summaries[0].step_s / s.step_s:.2f}", f"{s.trainer_waits:.0%}")
        lines.append(f"| {' | '.join((*cells, f'{s.engines_busy:.0%}', f'{s.staleness:.2f}', str(s.staleness_max)))} |")
    return "\n".join(lines) + "\n"


def draw(found: dict[str, Simulation], curves: dict[str, list[Summary]], path: Path) -> None:
    """Draw the timelines (as the paper's Fig. 3) and the curve over `async_ratio` as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(11, 6.5), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(found), 2, width_ratios=(2.2, 1))
    for row, (name, simulation) in enumerate(found.items()):
        axes = figure.add_subplot(grid[row, 0])
        _timeline(axes, simulation)
        axes.set_title(f"{name}: {summarize(name, simulation).step_s:.0f} s a step", fontsize=10, loc="left")
        if row == len(found) - 1:
            axes.set_xlabel("seconds")
    axes = figure.add_subplot(grid[:, 1])
    for name, color, marker in zip(curves, ("#2563eb", "#d97706"), "os", strict=True):
        axes.plot(RATIOS, [s.step_s for s in curves[name]], marker=marker, color=color, label=name)
    axes.legend(frameon=False)
    axes.set(xlabel="rl.async_ratio", ylabel="seconds a step", ylim=(0, None), title="How far sampling may be ahead")
    axes.grid(alpha=0.25)
    handles = [Patch(color=color, label=state.replace("_", " ")) for state, color in COLORS.items()]
    handles.append(Patch(color="#059669", alpha=0.5, label="turns at the engines"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    write_figure(path, figure)


def _timeline(axes: Axes, simulation: Simulation) -> None:
    """Draw the trainer's states above the number of turns at the engines."""
    began = simulation.steps[WARM - 1].end
    for state, start, end in simulation.spans:
        if end > began and start < began + SHOWN_S:
            axes.broken_barh([(start - began, end - start)], (1.1, 0.5), color=COLORS[state])
    most = max(load for _, load in simulation.loads)
    shown = [(at - began, load / most) for at, load in simulation.loads if began <= at <= began + SHOWN_S]
    axes.fill_between([at for at, _ in shown], [load for _, load in shown], step="post", color="#059669", alpha=0.5)
    axes.set(xlim=(0, SHOWN_S), ylim=(0, 1.7), yticks=(0.5, 1.35), yticklabels=("engines", "trainer"))
