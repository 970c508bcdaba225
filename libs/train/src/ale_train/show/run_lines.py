"""A run as lines: its state, its evaluations, its newest metrics, what was lost, and the table of its episodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from ale_train.evaluation.describe import describe
from ale_train.show.episode_rows import EpisodeRow, Filters
from ale_train.show.lines import Line, Table, line, one_line, printable
from ale_train.show.run_facts import COMPLETED, EVAL, KILLED, RUNNING, RunFacts, StageFacts

STATUS = {COMPLETED: "bold green", RUNNING: "bold cyan", "interrupted": "bold yellow"}
OUTCOME = {"passed": "green", "not passed": "yellow", "rejected": "magenta", "failure": "red"}
MOST_EVALUATIONS, MOST_TEXT = 6, 300
HEADLINE = (
    *("reward", "success", "loss", "entropy", "grad_norm", "lr", "kl_old", "kl_ref", "ratio", "clipped", "staleness"),
    *("chunks", "chunk_tokens", "rollouts", "rejected", "tokens_per_s", "rollout_s", "train_s", "seconds"),
)
"""The metrics that are shown, in this order."""


def run_lines(name: str, facts: RunFacts, rows: Sequence[EpisodeRow], filters: Filters, limit: int) -> Iterator[Line]:
    """Yield a run's page; `name` is its folder as the user wrote it. With filters it is what was lost and the table."""
    yield from _state(name, facts)
    if filters == Filters():
        yield from _stages(facts.stages, facts.saved)
        yield from _evaluations(facts.heldout)
        for stage in facts.stages:
            if stage.name.partition(".")[0] != EVAL:  # their figures are above
                yield from _metrics(stage)
    yield from _lost(facts)
    yield from _episodes(name, rows, filters, limit)


def _state(name: str, facts: RunFacts) -> Iterator[Line]:
    yield Line(((printable(facts.run_id), "bold"), (": ", ""), (facts.status, STATUS.get(facts.status, "bold red"))))
    if facts.error:
        yield line(printable(facts.error), "red", 2)
    seconds = "" if facts.seconds is None else f", {duration(facts.seconds)}"
    yield line(f"{facts.episodes:,} episodes, {facts.sampled_tokens:,} sampled tokens{seconds}", indent=2)
    if facts.status == RUNNING and facts.idle_s is not None:
        yield line(f"something was stored {duration(facts.idle_s)} ago", indent=2)
    if facts.status == KILLED:
        yield line("Nobody writes to it, and it left no summary: it was killed.", "red", 2)
    if facts.resumable:
        yield line(f"`ale run --resume {printable(name)}` goes on with it.", indent=2)


def _stages(stages: Sequence[StageFacts], saved: Sequence[str]) -> Iterator[Line]:
    if not stages:
        return
    yield from _heading("Stages")
    table = Table(("STAGE", "STEPS", "EPISODES", "PASSED", "LOST", "STATE"))
    for stage in stages:
        steps = f"{stage.steps} of {stage.planned}" if stage.planned is not None else str(stage.steps or "-")
        shares = f"{stage.passed} ({stage.passed / stage.episodes:.0%})" if stage.episodes else "-"
        done = stage.name in saved or ("final" in saved and stage.planned is not None)
        episodes = f"{stage.episodes:,}" if stage.episodes else "-"
        table.add(
            (printable(stage.name), ""),
            (steps, ""),
            (episodes, ""),
            (shares, ""),
            (str(stage.lost or "-"), "red" if stage.lost else ""),
            ("done" if done else "", "green"),
        )
    yield from table.lines(2)


def _evaluations(heldout: Mapping[str, Mapping[str, object]]) -> Iterator[Line]:
    if not heldout:
        return
    yield from _heading("Held-out success, with 95 % intervals over tasks")
    labels = list(heldout)
    left_out = len(labels) - MOST_EVALUATIONS
    for i, label in enumerate(labels):
        if left_out > 0 and 0 < i <= left_out:
            if i == 1:
                yield line(f"... {left_out} evaluations ...", "dim", 2)
            continue
        newest = label == labels[-1]
        for text in islice(describe(label, heldout[label]), None if newest else 1):  # of others, the first line
            yield line(printable(text), indent=2)


def _metrics(stage: StageFacts) -> Iterator[Line]:
    shown = [(name, stage.metrics[name]) for name in HEADLINE if name in stage.metrics]
    if not shown:
        return
    more = len(stage.metrics) - len(shown)
    yield from _heading(f"Newest metrics of {printable(stage.name)}")
    yield line(", ".join(f"{name} {number(value)}" for name, value in shown), indent=2)
    if more:
        yield line(f"and {more} more, which --json shows", "dim", 2)


def _lost(facts: RunFacts) -> Iterator[Line]:
    if not facts.lost:
        return
    yield from _heading("Failures and rejections")
    for lost in facts.lost:
        rejected = lost.kind == "rejected"
        what = f"rejected: {one_line(lost.reason)}" if rejected else f"{lost.kind} failure"
        yield Line(
            (
                (f"{lost.count:,} x {what}", "magenta" if rejected else "red"),
                (f"  such as {short_id(lost.example)}", "dim"),
            ),
            2,
        )
        if lost.text not in ("", lost.reason):
            yield line(cut(one_line(lost.text)), indent=4)


def _episodes(name: str, rows: Sequence[EpisodeRow], filters: Filters, limit: int) -> Iterator[Line]:
    if not rows:
        yield line("")
        yield line("No episode of this run matches." if filters != Filters() else "No episode has finished yet.")
        return
    which = f"the newest {limit}; --limit shows more" if len(rows) == limit else "newest first"
    yield from _heading(f"Episodes ({which})")
    table = Table(("ID", "STAGE", "STEP", "TASK", "OUTCOME", "REWARD", "TURNS", "TOKENS", "SECONDS", "ENDED BY"))
    for row in rows:
        reward = "-" if row.reward is None else number(row.reward)
        cells = [short_id(row.id), one_line(row.stage), str(row.step), one_line(row.task), row.outcome, reward]
        cells += [str(row.turns), str(row.tokens), f"{row.seconds:.1f}", one_line(row.ended_by)]
        styles = ("", "", "", "", OUTCOME[row.outcome], "", "", "", "", "")
        table.add(*zip(cells, styles, strict=True), note=(cut(one_line(row.why)), OUTCOME[row.outcome]))
    yield from table.lines(2)
    yield line("")
    yield line(f"`ale show {printable(name)} ID` shows an episode; the beginning of its id is enough.", "dim")


def _heading(text: str) -> Iterator[Line]:
    yield line("")
    yield line(text, "bold")


def short_id(episode: str) -> str:
    """Return the beginning of an episode's id, which is enough to find it in nearly every run."""
    return episode[:8]


def cut(text: str) -> str:
    """Return a text for a row of a table."""
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} ..."


def duration(seconds: float) -> str:
    """Return seconds for people: 42.3 s, 6 min 12 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def number(value: float) -> str:
    """Return a number of few digits."""
    return f"{value:.4g}" if math.isfinite(value) else str(value)
