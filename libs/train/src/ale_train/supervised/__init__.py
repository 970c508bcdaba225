"""The supervised stages before reinforcement learning: continual pre-training on text (`pretraining.py`), and
fine-tuning on demonstrations (`sft.py`)."""
