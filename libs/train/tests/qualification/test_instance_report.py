"""Which instances are kept: the judgement alone."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale.errors import ConfigError
from ale.task import Task, TaskTests
from ale_train.qualification.instance_report import Checks, Instance, InstanceReport, Limits, Rate, judge, mean_rate
from ale_train.qualification.qualify import Policy, tasks_of
from ale_train.rl.task_selection import read_instances

TASK = Task(id="t", instruction="", tests=TaskTests(command="true"), tags=("a",))
SOUND = Checks(untouched=(False, False), solution=(True, True))
VERDICTS = st.lists(st.booleans(), max_size=4).map(tuple)
RATES = st.dictionaries(
    st.sampled_from("pqr"),
    st.integers(0, 5).flatmap(lambda n: st.integers(0, n).map(lambda k: Rate(passed=k, attempts=n))),
)


def keep(checks: Checks = SOUND, rates: dict[str, Rate] | None = None, low: float = 0.1, high: float = 0.9) -> Instance:
    return judge(TASK, checks, rates or {}, Limits(min_pass=low, max_pass=high))


@given(VERDICTS, st.none() | VERDICTS, st.sampled_from(["", "lost"]), RATES, st.floats(0, 1), st.floats(0, 1))
def test_kept_is_what_passes_every_condition(
    untouched: tuple[bool, ...],
    solution: tuple[bool, ...] | None,
    problem: str,
    rates: dict[str, Rate],
    low: float,
    high: float,
) -> None:
    found = keep(Checks(untouched=untouched, solution=solution, problem=problem), rates, low, high)
    fit = not problem
    for verdict in untouched:
        fit = fit and not verdict
    for verdict in solution or ():
        fit = fit and verdict
    total = 0.0
    for rate in rates.values():
        fit = fit and rate.attempts > 0
        total += rate.passed / max(1, rate.attempts)
    if rates:
        fit = fit and low <= total / len(rates) <= high
    assert found.kept == fit
    assert bool(found.reason) != fit


@pytest.mark.parametrize(
    ("checks", "reason"),
    [
        (Checks(untouched=(True, True), solution=(True, True)), "its tests pass on the untouched environment"),
        (Checks(untouched=(False, False), solution=(False, False)), "its reference solution does not pass"),
        (
            Checks(untouched=(True, False), solution=(True, True)),
            "the verdict changes on the untouched environment: 1 of 2 runs passed",
        ),
        (
            Checks(untouched=(False, False), solution=(True, False)),
            "the verdict changes on its reference solution: 1 of 2 runs passed",
        ),
        (Checks(untouched=(False,), solution=(True,), problem="gone"), "it could not be checked: gone"),
    ],
)
def test_a_dropped_instance_says_why(checks: Checks, reason: str) -> None:
    assert keep(checks).reason == reason


def test_limits_are_included_and_policies_count_alike() -> None:
    uneven = {"p": Rate(passed=1, attempts=1), "q": Rate(passed=0, attempts=9)}
    assert mean_rate(uneven) == 0.5
    assert keep(rates=uneven, low=0.5, high=0.5).kept
    assert keep(rates={"p": Rate(passed=0, attempts=2)}).reason == "too hard: the pass rate 0.00 is below 0.1"
    assert keep(rates={"p": Rate(passed=2, attempts=2)}).reason == "too easy: the pass rate 1.00 is above 0.9"
    assert keep(rates={"p": Rate(passed=0, attempts=0)}).reason == "no attempt of p could be scored"


def test_a_report_and_a_list_of_ids_are_read_alike(tmp_path: Path) -> None:
    kept, dropped = keep(), keep(Checks(untouched=(True,)))
    report = InstanceReport(split="train", instances=(kept, dropped.model_copy(update={"id": "u"})))
    (tmp_path / "report.json").write_text(report.model_dump_json())
    (tmp_path / "ids.json").write_text('["t"]')
    assert read_instances(tmp_path / "report.json") == read_instances(tmp_path / "ids.json") == ["t"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ('{"a": 1}', "neither a report of `ale tasks select` nor a JSON list of ids"),
        ("[1]", "neither a report"),
        ("[]", "keeps no task"),
        ('["a", "b", "a"]', "names tasks more than once: a"),
        ('{"split": "heldout", "instances": [{"id": "a", "kept": true}]}', "holds tasks of the split 'heldout'"),
        ('{"split": "train", "instances": [{"id": "a", "kept": false}]}', "keeps no task"),
    ],
)
def test_a_file_that_names_no_tasks_is_refused(tmp_path: Path, text: str | None, sentence: str) -> None:
    file = tmp_path / "ids.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        read_instances(file)


def test_a_policy_with_other_files_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = Policy.of(tmp_path)
    assert Policy.of(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"other")
    assert Policy.of(tmp_path).key != first.key
    with pytest.raises(ConfigError, match="there is no model"):
        Policy.of(tmp_path / "nowhere")


def test_tasks_that_are_to_be_judged_and_are_not_there_are_named_with_the_option() -> None:
    bench = SimpleNamespace(
        config=SimpleNamespace(tasks=SimpleNamespace(use="bash"), eval=SimpleNamespace(split="heldout")),
        tasks_once=lambda split: iter(()),
    )
    with pytest.raises(ConfigError, match="'bash' has no tasks in its split 'odd': name another with --split, or give"):
        tasks_of(bench, "odd", None)  # type: ignore[arg-type]
