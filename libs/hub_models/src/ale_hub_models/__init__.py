"""This package finds the model that a run file names, in a folder or on the Hugging Face hub."""

from ale_hub_models.hub_models import HubModels

__all__ = ["HubModels"]
