"""The run report: one HTML file with charts and conversations, which works offline and loads nothing.

1. The facts, metrics and chosen rollouts are read from the run folder; a run may be writing to it meanwhile.
2. A Jinja2 template (autoescaped) makes the page; numbers and conversations go in as JSON (`page_json`).
3. The page's own script draws them. A content security policy with the hashes of that script and of the style
   forbids everything else, so what an agent wrote could not run even if it got past the escapes.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ale import __version__
from ale.store.output_files import file_at, write_output
from ale.store.run_store import RunStore
from ale_report.chart_types import Chart
from ale_report.charts import MetricTable, charts, metric_tables
from ale_report.events import MAX_EVENTS_PER_KIND, EventTable, event_tables
from ale_report.page_json import script_json, show_controls
from ale_report.run_facts import FINAL_MODEL, RunFacts, headline, read_facts, read_metrics
from ale_report.timeline import Timeline, read_timeline
from ale_report.trajectories import TrajectoryView, choose_trajectories

REPORT_NAME = "report.html"
_SCRIPTS = (
    "report_dom.js",
    "report_charts.js",
    "report_bars.js",
    "report_timeline.js",
    "report_turns.js",
    "report_browser.js",
    "report.js",
)


@dataclass(frozen=True, slots=True)
class Page:
    """The data for the page's script. `counts` has the number of rollouts of each stage in the whole run, `rounds` the
    names of evaluations by step."""

    charts: list[Chart]
    metrics: dict[str, MetricTable]
    events: list[EventTable]
    trajectories: list[TrajectoryView]
    counts: dict[str, int]
    rounds: dict[int, str]
    timeline: Timeline | None = None


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run; returns its path. Raises `ConfigError` where `folder` holds no run, and where the page
    cannot be written."""
    with RunStore.open(folder) as store:
        metrics = read_metrics(store)
        facts = read_facts(store, metrics)
        events = event_tables(store)
        chosen = choose_trajectories(store)
        timeline = read_timeline(store)
        stages = dict.fromkeys(view.stage for view in chosen)
        counts = {stage: store.count("stage = ?", (stage,)) for stage in stages}
    rounds = {e.step: e.label for e in facts.evaluations}
    page = Page(
        charts=charts(facts, metrics),
        metrics=metric_tables(metrics),
        events=events,
        trajectories=chosen,
        counts=counts,
        rounds=rounds,
        timeline=timeline,
    )
    return write_output(file_at(out, folder / REPORT_NAME), render(facts, page), "page")


def render(facts: RunFacts, page: Page) -> str:
    """The report of a run as HTML."""
    return render_page(
        "report.html",
        _SCRIPTS,
        page,
        facts=facts,
        tiles=headline(facts.evaluations),
        shown=len(page.trajectories),
        linked={view.id for view in page.trajectories},
        model=FINAL_MODEL,
        events=sum(table.count for table in page.events),
        newest=MAX_EVENTS_PER_KIND if any(table.count > MAX_EVENTS_PER_KIND for table in page.events) else 0,
        started=_utc(facts.started_at) if facts.started_at is not None else "",
    )


def render_page(template: str, scripts: Sequence[str], data: object, **values: object) -> str:
    """Return a template of this package as a page with its style, these scripts and `data` for them."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "seconds": format_duration,
        "percent": percent,
        "thousands": thousands,
        "visible": show_controls,
    }
    guard = _resource("report_guard.js")
    script = "\n".join(["(() => {", '"use strict";', *map(_resource, scripts), "})();"])
    style = _resource("report.css")
    return environment.from_string(_resource(template)).render(
        **values,
        written=_utc(time.time()),
        version=__version__,
        data=script_json(data),
        guard=Markup(guard),
        script=Markup(script),
        style=Markup(style),
        policy=f"default-src 'none'; script-src {_hash(guard)} {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
    )


def format_duration(seconds: float) -> str:
    """Seconds for people: 42.3 s, 6 min 12 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def percent(share: float) -> str:
    """A share as per cent with one decimal."""
    return f"{100 * share:.1f}"


def thousands(number: float) -> str:
    """A whole number in groups of three digits."""
    return f"{number:,.0f}"


def _utc(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(when))


def _resource(name: str) -> str:
    return files("ale_report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
