"""Draws an experiment: its panels side by side, a colour an arm, means over seeds with their intervals as bands."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from ale.store.output_files import write_output
from ale_lab.experiment import Column, Panel
from ale_lab.results import Results, interval_over_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#0891b2", "#4b5563", "#be185d")
PANEL_INCHES = (4.4, 3.4)
DPI = 130


def draw(results: Results, path: Path) -> None:
    """Write the picture as PNG."""
    # Figures of their own, without pyplot: no window system, and nothing kept between two pictures.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = results.experiment.panels
    figure = Figure(figsize=(PANEL_INCHES[0] * len(panels), PANEL_INCHES[1] + 0.7), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        ax.set_title(panel.title, fontsize=10)
        ax.set_ylabel(panel.y)
        ax.grid(alpha=0.25)
        if panel.share:
            ax.set_ylim(-0.03, 1.03)
        if panel.summary:
            _over_setting(ax, results, panel)
        else:
            _over_steps(ax, results, panel)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, max(1, len(labels))), frameon=False)
    seeds = len(results.seeds)
    figure.suptitle(f"{results.experiment.title} ({seeds} seed{'s' if seeds > 1 else ''})", fontsize=11)
    write_figure(path, figure)


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure completely or not at all. Raises `ConfigError`."""
    data = BytesIO()
    figure.savefig(data, format=path.suffix.removeprefix("."))
    write_output(path, data.getvalue(), "figure")


def _over_steps(ax: Axes, results: Results, panel: Panel) -> None:
    ax.set_xlabel("RL step")
    for i, arm in enumerate(results.experiment.arms):
        color = COLORS[i % len(COLORS)]
        if panel.each_seed:
            for seed in results.seeds:
                points = results.series[arm.name][seed].get(panel.series, ())
                ax.plot([s for s, _ in points], [v for _, v in points], color=color, linewidth=0.7, alpha=0.45)
        for seed in results.seeds if panel.marks else ():
            marks = results.series[arm.name][seed].get(panel.marks, ())
            ax.scatter([s for s, _ in marks], [v for _, v in marks], color=color, marker="x", s=28, linewidths=1.2)
        steps, band = results.band(arm.name, panel.series)
        ax.plot(steps, [b.mean for b in band], color=color, linewidth=2, label=arm.name)
        ax.fill_between(steps, [b.low for b in band], [b.high for b in band], color=color, alpha=0.18, linewidth=0)


def _over_setting(ax: Axes, results: Results, panel: Panel) -> None:
    ax.set_xlabel(results.experiment.setting)
    column = Column(panel.title, panel.series, panel.summary)
    for i, line in enumerate(dict.fromkeys(arm.line for arm in results.experiment.arms)):
        arms = [arm for arm in results.experiment.arms if arm.line == line]
        band = [interval_over_seeds(results.numbers(arm.name, column)) for arm in arms]
        means = [b.mean for b in band]
        error = [[b.mean - b.low for b in band], [b.high - b.mean for b in band]]
        places = [arm.setting for arm in arms]
        ax.errorbar(places, means, yerr=error, color=COLORS[i % len(COLORS)], marker="o", capsize=3, label=line)
