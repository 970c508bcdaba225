"""This package wraps sandboxes, to forward their calls or to report them to observers."""

from ale_wrapped_sandboxes.forwarding import ForwardingSandbox, ForwardingShell
from ale_wrapped_sandboxes.observed import ObservedSandbox

__all__ = ["ForwardingSandbox", "ForwardingShell", "ObservedSandbox"]
