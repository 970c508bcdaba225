"""This package mixes several task sources into one."""

from ale_task_mixture.mixture import MixedTasks

__all__ = ["MixedTasks"]
