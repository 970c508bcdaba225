"""Sandboxes without a daemon: Linux namespaces through bubblewrap, or else plain subprocesses without isolation."""

from ale_local.config import LocalSandboxConfig
from ale_local.provider import LocalSandboxProvider
from ale_local.sandbox import LocalSandbox

__all__ = ["LocalSandbox", "LocalSandboxConfig", "LocalSandboxProvider"]
