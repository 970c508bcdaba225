"""The trainer `megatron`: megatron-core over tensor, pipeline and data parallel ranks."""

from ale_trainer_megatron.trainer import MegatronTrainer

__all__ = ["MegatronTrainer"]
