"""Names of snapshots: `ale-OWNER-NAME` for those of ALE's own provider, so that each user has names of their own, and
`rock-SERVICE-NAME` for those that a service keeps for itself. Workers may put a prefix before it (container engines
`ale-snapshot:`).
"""

from __future__ import annotations

import hashlib
import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,46}")
"""With the owner it has at most 64 characters, which every provider takes."""

SNAPSHOT = re.compile(r"(?:.*:)?(?:ale|rock)-[0-9a-f]{12}-.+")


def is_snapshot(name: str) -> bool:
    """Whether a name on a worker is that of a snapshot, of any service, and not of an image."""
    return SNAPSHOT.fullmatch(name) is not None


def name_for(owner: str | None, name: str) -> str:
    """Return the name of a user's snapshot at a worker."""
    return _prefix(owner) + name


def is_owned(owner: str | None, full_name: str) -> bool:
    """Whether a name is that of a snapshot of this user."""
    return full_name.rpartition(":")[2].startswith(_prefix(owner))


def _prefix(owner: str | None) -> str:
    return f"ale-{hashlib.sha256((owner or '').encode()).hexdigest()[:12]}-"
