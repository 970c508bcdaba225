"""Snapshots of containers whose runtime fails to freeze them, which the real one does only now and then."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ale.errors import SandboxError
from ale_sandbox.containers.image_snapshots import FREEZE_ATTEMPTS, commit

MESSAGES = {
    "docker": "Cannot pause container 8e6b: OCI runtime pause failed: unable to freeze: unknown",
    "podman": 'CommitFailure: pausing container "1ad0" to commit: `/usr/bin/runc pause 1ad0` failed: exit status 1',
}


class Unlucky:
    """An engine whose first attempts to save a container fail."""

    def __init__(self, message: str, failures: int) -> None:
        self.message, self.failures, self.attempts = message, failures, 0

    async def commit(self, name: str, image: str) -> None:
        """Fail, or not."""
        self.attempts += 1
        if self.attempts <= self.failures:
            raise SandboxError(self.message)


@pytest.mark.parametrize("engine", MESSAGES)
async def test_a_container_that_could_not_be_frozen_is_saved_at_the_next_attempt(engine: str) -> None:
    unlucky = Unlucky(MESSAGES[engine], failures=2)
    await commit(cast(Any, unlucky), "box", "image")
    assert unlucky.attempts == 3


async def test_one_that_is_never_frozen_is_given_up() -> None:
    unlucky = Unlucky(MESSAGES["podman"], failures=100)
    with pytest.raises(SandboxError, match="pausing container"):
        await commit(cast(Any, unlucky), "box", "image")
    assert unlucky.attempts == FREEZE_ATTEMPTS


async def test_other_failures_are_not_tried_again() -> None:
    unlucky = Unlucky("no space left on device", failures=1)
    with pytest.raises(SandboxError, match="no space left"):
        await commit(cast(Any, unlucky), "box", "image")
    assert unlucky.attempts == 1
