"""A hint names what was misspelt; a word that merely has letters in common with a name gets none."""

from __future__ import annotations

import pytest

from ale.registry.validation import nearest_hint

NAMES = [
    *("use", "when", "weight", "select", "rl", "sft", "lr", "beta1", "beta2", "eps", "device", "threads", "packing"),
    *(
        "steps",
        "prompts_per_step",
        "temperature",
        "concurrency",
        "max_tokens",
        "max_context",
        "max_calls",
        "group_size",
    ),
    *("micro_batch_tokens", "gradient_checkpointing", "weight_decay", "warmup_steps", "timeout_s", "checkpoint_every"),
    *("return_signal", "return_level", "isolation", "path", "function", "functions", "scaffold", "sandbox", "reward"),
]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("stpes", "steps"),  # swapped
        ("setps", "steps"),
        ("step", "steps"),  # a letter is missing: singular for plural
        ("stepss", "steps"),
        ("stepz", "steps"),
        ("uze", "use"),
        ("lrr", "lr"),
        ("rewards", "reward"),
        ("temprature", "temperature"),
        ("temperatur", "temperature"),
        ("tempreature", "temperature"),
        ("conccurency", "concurrency"),  # two letters of a long word
        ("isolaton", "isolation"),
        ("group-size", "group_size"),
        ("groupSize", "group_size"),
        ("maxTokens", "max_tokens"),
        ("max_token", "max_tokens"),
        ("Max_Context", "max_context"),
        ("warm_up_steps", "warmup_steps"),
        ("timeout", "timeout_s"),
        ("timeouts", "timeout_s"),
        ("functionn", "function"),
        ("sanbdox", "sandbox"),
        ("checkpoint", "checkpoint_every"),  # a beginning
        ("temp", "temperature"),
        ("prompts", "prompts_per_step"),
        ("gradient_checkpoint", "gradient_checkpointing"),
    ],
)
def test_a_misspelling_is_found(typed: str, meant: str) -> None:
    assert nearest_hint(typed, NAMES) == f" Did you mean '{meant}'?"


@pytest.mark.parametrize(
    "typed",
    [
        *("lora", "least", "detect", "forward", "toward", "kl", "r", "x", "", "_", "-", "lose", "bet", "epoch"),
        *(
            "tokens",
            "context",
            "batch",
            "batch_size",
            "learning_rate",
            "n",
            "top",
            "min",
            "size",
            "rate",
            "local",
            "loss",
        ),
        *("return", "max", "num_generations", "entropy_coef", "adv_estimator", "clip_ratio", "optim", "logger"),
        *("steps_per_epoch", "per_step", "a" * 100_000),
    ],
)
def test_another_word_is_none(typed: str) -> None:
    assert nearest_hint(typed, NAMES) == ""


def test_one_edit_is_nearer_than_two_and_a_misspelling_nearer_than_a_beginning() -> None:
    assert nearest_hint("max_call", ["max_calls", "max_balls"]) == " Did you mean 'max_calls'?"
    assert nearest_hint("step", ["step_weight", "steps"]) == " Did you mean 'steps'?"
    assert nearest_hint("anything", []) == ""
