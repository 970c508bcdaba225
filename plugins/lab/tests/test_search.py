"""The search that tunes the arms: small, the same for each, and its outcome stands in the arms."""

from __future__ import annotations

from pathlib import Path

from ale_lab.catalogue import COMPARE, FIG10, PARTS, STALENESS
from ale_lab.hyperparameter_search import (
    Choice,
    apply_choices,
    best_choice,
    describe_search,
    find_arm,
    learning_rate_trials,
    make_trial,
    setting_trials,
)
from ale_lab.run_plan import Plan


def test_every_method_is_tried_as_often() -> None:
    assert {search.arm for search in COMPARE.searches} == {arm.name for arm in COMPARE.arms}
    assert {(len(s.rates), len(s.values)) for s in COMPARE.searches} == {(3, 3)}
    assert len({s.rates for s in COMPARE.searches}) == 1


def test_the_learning_rates_come_first_and_then_the_other_values() -> None:
    search = COMPARE.searches[0]
    first = learning_rate_trials(COMPARE, search)
    second = setting_trials(COMPARE, search, search.rates[1])
    assert [c.rate for c in first] == list(search.rates)
    assert {c.value for c in first} == {search.values[0]}
    assert {c.rate for c in second} == {search.rates[1]}
    assert [c.value for c in second] == list(search.values)
    shared = set(first.values()) & set(second.values())
    assert len(shared) == 1, "the best of the first half is not made twice"
    assert len({arm.name for arm in [*first.values(), *second.values()]}) == 5


def test_the_best_scores_highest_and_of_equals_is_the_earlier() -> None:
    tried = learning_rate_trials(COMPARE, COMPARE.searches[0])
    scores = dict(zip([arm.name for arm in tried.values()], (0.2, 0.9, 0.9), strict=True))
    assert best_choice(tried, lambda arm: scores[arm.name]) == list(tried)[1]


def test_the_reported_arms_have_what_was_found_and_keep_their_names() -> None:
    chosen = {search.arm: Choice(search.rates[2], search.values[1]) for search in COMPARE.searches}
    after = apply_choices(COMPARE, chosen)
    assert [arm.name for arm in after.arms] == [arm.name for arm in COMPARE.arms]
    for search in COMPARE.searches:
        own = find_arm(after, search).overrides
        assert own == make_trial(COMPARE, search, chosen[search.arm]).overrides
        assert own[-2:] == (f"rl.lr={search.rates[2]:g}", f"{search.key}={search.values[1]:g}")
    said = describe_search(COMPARE, chosen, (101,))
    assert "5 runs" in said
    assert "seed 101" in said
    assert "`gspo` lr 0.0007, clip_high 0.004" in said


def test_under_staleness_each_line_is_tuned_as_in_the_comparison_whose_runs_are_its_first_points(
    tmp_path: Path,
) -> None:
    chosen = {search.arm: Choice(search.rates[1], search.values[2]) for search in COMPARE.searches}
    compared, lagged = apply_choices(COMPARE, chosen), apply_choices(STALENESS, chosen)
    assert {arm.line for arm in lagged.arms} == {arm.name for arm in compared.arms}
    of = {arm.name: arm for arm in compared.arms}
    plan = Plan(tmp_path)
    for arm in lagged.arms:
        run, same = plan.arm(lagged, arm, 3), plan.arm(compared, of[arm.line], 3)
        settings = [text for text in run.overrides if not text.startswith(("rl.async_ratio", "rl.ahead"))]
        assert sorted(settings) == sorted(same.overrides)
        assert (run.folder == same.folder) == (arm.setting == 0)
        assert (set(run.overrides) == set(same.overrides)) == (arm.setting == 0), "else the folder would be refused"
        known = plan.settings(lagged, arm) == plan.settings(compared, of[arm.line])
        assert known == (arm.setting == 0), "what is known of the comparison is known here"


def test_the_arms_of_fig10_are_also_compared_at_each_others_settings() -> None:
    chosen = {"baseline": Choice(7e-4, -0.05), "chunk": Choice(3.5e-4, -0.02)}
    of = {arm.name: arm.overrides for arm in apply_choices(FIG10, chosen).arms}
    assert of["baseline"][:-2] == of["baseline-as-chunk"][:-2]
    assert of["baseline"][-2:] == of["chunk-as-baseline"] == ("rl.lr=0.0007", "algorithm.negative_signal=-0.05")
    assert of["chunk"] == of["baseline-as-chunk"][-2:] == ("rl.lr=0.00035", "algorithm.negative_signal=-0.02")


def test_one_thing_is_changed_in_each_of_the_other_parts(tmp_path: Path) -> None:
    chosen = {search.arm: Choice(search.rates[1], search.values[0]) for search in COMPARE.searches}
    chosen["topr"] = Choice(chosen["ipa"].rate, -0.02)
    parts, plan = apply_choices(PARTS, chosen), Plan(tmp_path)
    first, *others = (set(plan.arm(parts, arm, 3).overrides) for arm in parts.arms)
    assert plan.folder(parts, parts.arms[0], 3) == tmp_path / "compare" / "seed-3" / "ipa"
    assert [len(other - first) for other in others] == [1, 1, 1, 1]
