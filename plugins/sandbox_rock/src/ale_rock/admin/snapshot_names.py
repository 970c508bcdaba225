"""Names of snapshots: `ale-OWNER-NAME` of ALE's own provider, so that each user has names of their own, and
`rock-SERVICE-NAME` of what a service keeps for itself.

Workers may put more before it (`ale-snapshot:`, of container engines).
"""

from __future__ import annotations

import hashlib
import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,46}")
"""With the owner it has at most 64 characters, which every provider takes."""

SNAPSHOT = re.compile(r"(?:.*:)?(?:ale|rock)-[0-9a-f]{12}-.+")


def is_snapshot(name: str) -> bool:
    """Whether what a worker holds is a snapshot, of whichever service, and no image."""
    return SNAPSHOT.fullmatch(name) is not None


def name_for(owner: str | None, name: str) -> str:
    """Return what a worker is told to call a user's snapshot."""
    return _prefix(owner) + name


def is_owned(owner: str | None, full_name: str) -> bool:
    """Whether a name is that of a snapshot of this user."""
    return full_name.rpartition(":")[2].startswith(_prefix(owner))


def _prefix(owner: str | None) -> str:
    return f"ale-{hashlib.sha256((owner or '').encode()).hexdigest()[:12]}-"
