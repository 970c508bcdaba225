"""A simulator of the loop: discrete events on a clock of their own, around the real sample buffer."""

from pydantic import ConfigDict

FORBID = ConfigDict(extra="forbid")
"""Of what a scene's file holds: a misspelt key is a mistake."""
