"""Measures `ale plugins list` with many plugins installed, compared with an interpreter that does nothing.

Dummy packages, one of them broken, are on PYTHONPATH; each round runs both sides.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 15
CLASS = 'class Dummy(Driver, Reward):\n    """A dummy."""\n\n    api_version = ">=1.0,<1.2"\n'
ALE = Path(sys.executable).with_name("ale")


def write_plugins(folder: Path, n: int) -> None:
    """Write `n` packages with a reward each; the module of the last is missing."""
    for i in range(n):
        module, info = folder / f"dummy_{i}", folder / f"dummy_{i}-1.0.dist-info"
        info.mkdir()
        if i < n - 1:
            module.mkdir()
            (module / "__init__.py").write_text(f"raise SystemExit('imported')\nfrom dummy_{i}.reward import Dummy\n")
            (module / "reward.py").write_text(CLASS)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dummy-{i}\nVersion: 1.0\nSummary: A dummy.\n")
        (info / "entry_points.txt").write_text(f"[ale.reward]\ndummy-{i} = dummy_{i}:Dummy\n")
        (info / "RECORD").write_text("")


def seconds(*command: str | Path, path: Path | None = None) -> float:
    """Measure the wall time of a command."""
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    began = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    print(f"{'plugins':>8}  {'list s':>7}  {'min':>6}  {'max':>6}  {'python s':>8}  {'ratio':>5}")
    for n in (0, 50, 200):
        with tempfile.TemporaryDirectory() as folder:
            write_plugins(Path(folder), n)
            seconds(ALE, "plugins", "list", path=Path(folder))  # once, for compiled files
            pairs = [
                (seconds(ALE, "plugins", "list", path=Path(folder)), seconds(sys.executable, "-c", "pass"))
                for _ in range(ROUNDS)
            ]
        listed, bare = ([pair[i] for pair in pairs] for i in (0, 1))
        ratio = statistics.median(a / b for a, b in pairs)
        print(
            f"{n:>8}  {statistics.median(listed):>7.3f}  {min(listed):>6.3f}  {max(listed):>6.3f}  "
            f"{statistics.median(bare):>8.3f}  {ratio:>5.1f}"
        )


if __name__ == "__main__":
    main()
