"""Linux namespaces through bubblewrap, no daemon; a plain subprocess sandbox where there is none."""

from ale_local.provider import LocalSandboxConfig, LocalSandboxProvider
from ale_local.sandbox import LocalSandbox

__all__ = ["LocalSandbox", "LocalSandboxConfig", "LocalSandboxProvider"]
