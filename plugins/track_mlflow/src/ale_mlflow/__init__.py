"""This package logs a run to MLflow."""

from ale_mlflow.tracker import MlflowTracker

__all__ = ["MlflowTracker"]
