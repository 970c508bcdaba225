"""Linux namespaces through bubblewrap, no daemon; a plain subprocess sandbox where there is none."""

from ale_local.provider import LocalSandboxProvider

__all__ = ["LocalSandboxProvider"]
