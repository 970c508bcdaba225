"""Supervised fine-tuning with error-masked turns (Eqs. 1 and 2)."""
