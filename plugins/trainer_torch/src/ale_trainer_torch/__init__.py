"""One process: AdamW, bucketed micro-batches, Hugging Face folders in and out."""

from ale_trainer_torch.trainer import TorchTrainer

__all__ = ["TorchTrainer"]
