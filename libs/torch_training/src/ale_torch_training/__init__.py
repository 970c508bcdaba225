"""What trainers on torch have in common: how a batch is cut, its loss, model folders, checkpoints, ranks."""

from ale_torch_training.ranked_trainer import RankPlaces

__all__ = ["RankPlaces"]
