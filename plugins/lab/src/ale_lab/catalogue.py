"""The experiments: each with its arms, its budget, its charts and its columns. The run files are in `recipes/`."""

from __future__ import annotations

from ale_lab.experiment import Arm, Column, Experiment, Panel, Probe, Search

TRAIN_SUCCESS = Panel("Training", "rl/success", "success of the rollouts")
HELDOUT = Panel("Held-out tasks", "eval/success", "success")
TRAIN_COLUMNS = (Column("train, last quarter", "rl/success", "tail"), Column("train, area", "rl/success", "area"))
HELDOUT_COLUMNS = (Column("held-out, final", "eval/success", "last"), Column("held-out, area", "eval/success", "area"))
POSITIVES_ONLY = "algorithm.return_signal=raw"
"""With this signal a failed rollout has the reward 0 and teaches nothing. It is the best setting for the arm without
experts: where all rollouts fail, learning from failures only spoils the policy."""
EXPERTS = "algorithm.experts={demonstrations: false, demonstrate: 1}"
HARD = ("tasks.wrong_turn_rate=0", "eval.split=train", POSITIVES_ONLY)
"""Experts come from the demonstrator alone, not from the warm start, and the evaluation uses the training tasks."""
RANDOM_ANCHORS = "algorithm.anchor_choice=random"
"""Four anchors at even distances on a path of seven chunks always lie before a look, never before a turn. But a policy
that has forgotten a dial's word has to imitate a turn, so some anchors must lie directly before one."""

RATES = (1.75e-4, 3.5e-4, 7e-4)
NEGATIVE_SIGNALS = "algorithm.negative_signal", (-0.05, -0.02, -0.1)

BASELINE = ("algorithm.return_level=trajectory", "algorithm.ratio_level=trajectory", "algorithm.mask_level=token")
"""Eq. 6: returns and ratios of whole trajectories, mismatch masked token by token."""

FIG10 = Experiment(
    name="fig10",
    title="Chunk level against the trajectory-level baseline",
    recipe="long_mix",
    arms=(
        Arm("baseline", BASELINE),
        Arm("chunk"),
        # Each is also run with the settings that the search found for the other, so that a difference which stays is
        # not one of learning rates.
        Arm("baseline-as-chunk", BASELINE, "chunk"),
        Arm("chunk-as-baseline", (), "baseline"),
    ),
    panels=(Panel("Gradient norm, not clipped", "rl/grad_norm", "norm", share=False), TRAIN_SUCCESS, HELDOUT),
    columns=(
        Column("grad norm, std", "rl/grad_norm", "spread"),
        Column("grad norm, std / mean", "rl/grad_norm", "variation"),
        *TRAIN_COLUMNS,
        *HELDOUT_COLUMNS,
    ),
    searches=tuple(Search(name, RATES, *NEGATIVE_SIGNALS) for name in ("baseline", "chunk")),
)

FIG12 = Experiment(
    name="fig12",
    title="Sequential rollback on one task with three crucial forks",
    recipe="dials",
    arms=(
        Arm("naive", ("algorithm.start=beginning",)),
        Arm("rollback", ("algorithm.start=rollback", EXPERTS)),
        Arm("rollback-no-imitation", ("algorithm.start=rollback", EXPERTS, "algorithm.lambda_il=0")),
    ),
    panels=(
        Panel(
            "Training (x: a crucial fork is found)",
            "rl/success",
            "success of the rollouts",
            each_seed=True,
            marks="rl/fork",
        ),
        Panel("Expert chunks replayed", "rl/start_chunk", "chunks", each_seed=True, share=False),
        Panel("Test: from the beginning", "eval/success", "success"),
    ),
    columns=(
        Column("from the beginning, final", "eval/success", "last"),
        Column("from the beginning, best", "eval/success", "largest"),
        *TRAIN_COLUMNS,
        Column("expert chunks at the end", "rl/start_chunk", "last"),
    ),
    overrides=(*HARD, "tasks.train_tasks=1", "eval.episodes=32"),
)

FIG13 = Experiment(
    name="fig13",
    title="Parallelized initialization on eight hard tasks",
    recipe="dials",
    arms=(
        Arm("beginning", ("algorithm.start=beginning",)),
        Arm("parallel", ("algorithm.start=parallel", RANDOM_ANCHORS, EXPERTS)),
    ),
    panels=(
        TRAIN_SUCCESS,
        Panel("The task that does worst, from the beginning", "eval/minimum", "success"),
        Panel("Held-out tasks, from the beginning", "heldout/success", "success"),
    ),
    columns=(
        Column("worst task, final", "eval/minimum", "last"),
        Column("all tasks, final", "eval/success", "last"),
        Column("held-out, final", "heldout/success", "last"),
        Column("held-out, area", "heldout/success", "area"),
        *TRAIN_COLUMNS,
    ),
    overrides=(
        *HARD,
        "tasks.train_tasks=8",
        "rl.prompts_per_step=8",
        "rl.updates_per_step=4",
        "rl.checkpoint_every=20",
        "rl.checkpoint_keep=0",
    ),
    probe=Probe("heldout", ("eval.split=heldout",)),
)


def _pg(variant: str, *more: str) -> tuple[str, ...]:
    return ("algorithm.use=pg", f"algorithm.variant={variant}", "algorithm.group_size=8", *more)


COMPARE = Experiment(
    name="compare",
    title="IPA beside GRPO, TOPR, GSPO and PPO-clip at equal rollouts",
    recipe="mix",
    arms=tuple(
        Arm(name, overrides)
        for name, overrides in (
            ("grpo", _pg("grpo")),
            ("topr", _pg("topr")),
            ("gspo", _pg("gspo")),
            ("ppo_clip", _pg("ppo_clip")),
            ("ipa", ()),
        )
    ),
    panels=(TRAIN_SUCCESS, HELDOUT),
    columns=(*HELDOUT_COLUMNS, *TRAIN_COLUMNS),
    searches=(
        Search("grpo", RATES, "algorithm.clip_high", (0.2, 0.28, 0.4)),
        Search("topr", RATES, *NEGATIVE_SIGNALS),
        Search("gspo", RATES, "algorithm.clip_high", (4e-4, 4e-3, 4e-2)),
        Search("ppo_clip", RATES, "algorithm.clip_high", (0.2, 0.28, 0.4)),
        Search("ipa", RATES, *NEGATIVE_SIGNALS),
    ),
)

PARTS = Experiment(
    name="parts",
    title="IPA with one thing changed at a time",
    recipe="mix",
    arms=(
        Arm("ipa", (), "ipa"),
        Arm("ipa-tuned-as-topr", (), "topr", 1),
        Arm("ipa-undiscounted", ("algorithm.gamma=1",), "ipa", 1),
        Arm("ipa-trajectory-ratio", ("algorithm.ratio_level=trajectory",), "ipa", 1),
        Arm("ipa-experts", ("algorithm.experts={demonstrations: false, demonstrate: 2}",), "ipa", 1),
    ),
    panels=(TRAIN_SUCCESS, HELDOUT),
    columns=(*HELDOUT_COLUMNS, *TRAIN_COLUMNS),
    tuned_as=COMPARE,
)

LAGS = (0, 2, 4, 8)


def _asynchronous(lag: int) -> tuple[str, ...]:
    """Sampling is as far ahead as the bound on staleness allows, so that staleness stays at the bound."""
    return (f"rl.async_ratio={lag}", f"rl.ahead={lag}") if lag else ()


def _with_lag(arm: Arm, lag: int) -> Arm:
    # Without a lag it is the same run as in `compare`.
    return Arm(f"{arm.name}-{lag}", (*arm.overrides, *_asynchronous(lag)), arm.name, lag)


STALENESS = Experiment(
    name="staleness",
    title="Five methods, training on rollouts of some steps before",
    recipe="mix",
    arms=tuple(_with_lag(arm, lag) for arm in COMPARE.arms for lag in LAGS),
    panels=(
        Panel("Held-out success, final", "eval/success", "success", "last"),
        Panel("Runs that collapsed", "eval/success", "share", "collapsed"),
    ),
    columns=(
        HELDOUT_COLUMNS[0],
        Column("held-out, best", "eval/success", "largest"),
        Column("collapsed", "eval/success", "collapsed"),
    ),
    setting="rl.async_ratio",
    tuned_as=COMPARE,
)

NOISE = "engine.logit_noise=1"
"""With this noise five in a hundred sampled tokens have `pi_old / mu` below 0.7, and one in a hundred above 1.5; with
bfloat16 or int8 one in a hundred is off by more than 0.03."""
MEANT = "rl.probe_limit=9"
"""Such an engine is meant to differ from the trainer."""


def _grpo(name: str, engine: str, correction: str = "") -> Arm:
    own = (f"algorithm.correction={correction}",) if correction else ()
    return Arm(name, (*_pg("grpo"), engine, MEANT, *own), "grpo", 1)


def _ipa(name: str, engine: str, *mask: str) -> Arm:
    return Arm(name, (engine, MEANT, *mask), "ipa", 1)


MISMATCH = Experiment(
    name="mismatch",
    title="An engine that differs from the trainer: no correction, the corrections of GRPO, the mask of IPA",
    recipe="mix",
    arms=(
        Arm("grpo-exact", _pg("grpo"), "grpo"),  # the runs of `compare`
        Arm("ipa-exact", (), "ipa"),
        _grpo("grpo", NOISE),
        _grpo("grpo-tis-token", NOISE, "{weight: truncate, level: token, cap: 2}"),
        _grpo("grpo-tis-chunk", NOISE, "{weight: truncate, level: chunk, cap: 2}"),
        _grpo("grpo-tis-sequence", NOISE, "{weight: truncate, level: sequence, cap: 2}"),
        _grpo("grpo-mask-token", NOISE, "{weight: mask, level: token, cap: 2}"),
        _grpo("grpo-reject", NOISE, "{weight: none, reject: [0.9, 1.1]}"),
        _ipa("ipa-no-mask", NOISE, "algorithm.mismatch_threshold=1e6"),
        _ipa("ipa-mask", NOISE, "algorithm.mismatch_threshold=1.05"),
        _ipa("ipa-mask-two-sided", NOISE, "algorithm.mismatch_threshold=1.1", "algorithm.mismatch_lower=0.9"),
        _grpo("grpo-bfloat16", "engine.dtype=bfloat16"),
        _ipa("ipa-bfloat16", "engine.dtype=bfloat16"),
        _grpo("grpo-int8", "engine.quantization=int8"),
        _ipa("ipa-int8", "engine.quantization=int8"),
    ),
    panels=(Panel("Gradient norm, not clipped", "rl/grad_norm", "norm", share=False), TRAIN_SUCCESS, HELDOUT),
    columns=(
        Column("grad norm, std", "rl/grad_norm", "spread"),
        Column("grad norm, std / mean", "rl/grad_norm", "variation"),
        Column("mismatch, mean", "rl/mismatch_mean", "area"),
        *TRAIN_COLUMNS,
        *HELDOUT_COLUMNS,
    ),
    tuned_as=COMPARE,
)

FIG10_MISMATCH = Experiment(
    name="fig10-mismatch",
    title="Chunk level against the trajectory-level baseline, where the engine differs from the trainer and data are "
    "stale",
    recipe="long_mix",
    arms=tuple(
        Arm(name, (*own, NOISE, MEANT, *_asynchronous(4), "algorithm.mismatch_threshold=1.1"), "chunk", 1)
        for name, own in (("baseline", BASELINE), ("chunk", ()))
    ),
    panels=FIG10.panels,
    columns=(*FIG10.columns, Column("masked", "rl/masked", "area"), Column("ratio, std", "rl/ratio_std", "area")),
    tuned_as=FIG10,
)

EXPERIMENTS = {e.name: e for e in (FIG10, FIG12, FIG13, COMPARE, PARTS, STALENESS, MISMATCH, FIG10_MISMATCH)}
