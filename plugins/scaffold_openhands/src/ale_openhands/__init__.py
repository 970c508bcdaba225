"""The OpenHands agent, by its SDK, in the sandbox."""

from ale_openhands.scaffold import OpenHands

__all__ = ["OpenHands"]
