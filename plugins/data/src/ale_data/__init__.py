"""Tasks and demonstrations from data sets: JSONL, CSV, Parquet, Hugging Face datasets."""

from ale_data.task_source import JsonlTasks

__all__ = ["JsonlTasks"]
