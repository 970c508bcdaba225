"""A scaffold that runs mini-swe-agent, the small successor of SWE-agent, in the sandbox."""

from ale_sweagent.scaffold import SweAgent

__all__ = ["SweAgent"]
