"""This package has the supervised stages before reinforcement learning: continual pre-training on text, and fine-tuning
on demonstrations."""
