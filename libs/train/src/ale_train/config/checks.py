"""Checks of a run that trains, before anything starts."""

from __future__ import annotations

from ale.errors import ConfigError
from ale_train.config.run import RunConfig


def check_trainer(run: RunConfig) -> None:
    """Refuse a run that trains without a trainer. Raises `ConfigError`."""
    if run.trainer is None:
        raise ConfigError("trainer: 'cpt', 'sft' and 'rl' need a trainer; name one, or use '--only rollout'.")


def check_policy_to_train(run: RunConfig) -> None:
    """Refuse a run that trains without a trainer, or has no policy to train. Raises `ConfigError`."""
    if run.model.scratch is not None and run.sft is None:
        raise ConfigError(
            "model.scratch: the tokenizer is trained on demonstrations, so the run needs an 'sft' section"
            f"{'; for cpt without it give model.path' if run.cpt else ''}."
        )
    check_trainer(run)
    if run.model.scratch is None and run.model.path is None:
        raise ConfigError(
            "model: 'cpt', 'sft' and 'rl' need a policy to train; give model.path or model.scratch, or use '--only "
            "rollout'."
        )
