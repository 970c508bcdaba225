"""This package wraps sandboxes, to forward their calls or to report them to observers."""

from ale.rollout.sandbox_wrappers.forwarding import ForwardingSandbox, ForwardingShell
from ale.rollout.sandbox_wrappers.observed import ObservedSandbox

__all__ = ["ForwardingSandbox", "ForwardingShell", "ObservedSandbox"]
