"""The iFlow agent: one control loop with shell, read_file, write_file and finish (paper, section 2.4)."""

from ale_iflow.agent import IFlow

__all__ = ["IFlow"]
