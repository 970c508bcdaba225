"""This package has what the training stages of a run share."""

from ale_training.checks import check_policy_to_train
from ale_training.mismatch import compare_logprobs, mismatch_metrics
from ale_training.publishing import publish
from ale_training.retokenization import retokenize
from ale_training.stage_checkpoints import StageCheckpoints

__all__ = [
    "StageCheckpoints",
    "check_policy_to_train",
    "compare_logprobs",
    "mismatch_metrics",
    "publish",
    "retokenize",
]
