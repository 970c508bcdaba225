"""What `ale doctor` says about Ray: its version."""

from __future__ import annotations

from collections.abc import Iterator

import ray

from ale.cli.doctor import Finding


def check() -> Iterator[Finding]:
    """Yield Ray's version. Nothing is started or joined."""
    yield Finding("Ray", "ok", f"{ray.__version__}, for runs with cluster: ray")
