"""A scaffold that runs the OpenHands agent, through its SDK, in the sandbox."""

from ale_openhands.scaffold import OpenHands

__all__ = ["OpenHands"]
