"""A trainer in one process: AdamW, micro-batches without padding, Hugging Face folders in and out."""

from ale_trainer_torch.trainer import TorchTrainer

__all__ = ["TorchTrainer"]
