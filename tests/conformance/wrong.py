"""Deliberately wrong plugins, and the check that the kit says of each what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kit import run_kit, run_kit_here
from support.fake_packages import write_package

SANDBOX = """
from ale.errors import SandboxError
from ale.specs.sandbox import ExecResult
from ale.specs.sandbox_protocols import Output, Shell
from ale_local import LocalSandboxProvider
from ale_local.isolated_sandbox import IsolatedSandbox
import asyncio
class Fixed(LocalSandboxProvider):
    async def start_sandbox(self, spec):
        box = await super().start_sandbox(spec)
        self.spoil(box)
        return box
    def spoil(self, box):
        pass
"""
AWAITED_S = 30
"""For what only shows as something that does not come: the kit waits for a quarter of it."""


@dataclass(frozen=True)
class Wrong:
    """A mutant: its kind, what it does, the test that fails, and what the failure says."""

    kind: str
    source: str
    test: str
    says: str
    config: str = ""
    timeout_s: float = 120.0
    hangs: bool = False
    """Holds its process: it needs one of its own, which is killed."""


def assert_found(wrong: Wrong, folder: Path) -> None:
    """The kit runs the one test against the plugin, and says what is wrong with it."""
    write_package(folder, "far-away", wrong.source, name="wrong", kind=wrong.kind)
    (folder / "settings.yaml").write_text(wrong.config)
    done = (run_kit if wrong.hangs else run_kit_here)(
        folder,
        f"{wrong.kind}:wrong",
        "--ale-config",
        folder / "settings.yaml",
        "-k",
        wrong.test,
        "--ale-timeout",
        str(wrong.timeout_s),
        path=folder,
    )
    assert done.returncode == 1, done.stdout[-4000:]
    assert "1 failed" in done.stdout
    assert wrong.says in done.stdout, done.stdout[-3000:]
