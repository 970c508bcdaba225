"""Environments with a loop of their own (`reset`, `step`): the task source `env` and the scaffold `env`."""

from ale_env_loop.scaffold import EnvScaffold, EnvScaffoldConfig
from ale_env_loop.tasks import EnvTasks, EnvTasksConfig

__all__ = ["EnvScaffold", "EnvScaffoldConfig", "EnvTasks", "EnvTasksConfig"]
