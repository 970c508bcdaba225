"""Make the figures and tables of this folder: every experiment of `ale lab`, one after the other.

    python benchmarks/ipa/run.py [--seeds 1-5] [--jobs 1] [--out runs/lab] [--only fig12 ...] [--known FILE ...]
    [--quick]

Finished runs, and runs in the data of an earlier lab (`--known`), are not made again, so the script can be stopped and
started again at any time. Tables and data are copied to this folder and pictures to `docs/figures`, except with
`--quick`."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from ale_lab.catalogue import EXPERIMENTS

ALE = Path(sys.executable).with_name("ale")
HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "docs" / "figures"


def main() -> None:
    """Run the experiments and copy the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-5")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/lab"))
    parser.add_argument("--only", nargs="+", choices=list(EXPERIMENTS), default=list(EXPERIMENTS))
    parser.add_argument("--known", type=Path, nargs="+", default=[])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    for name in options.only:
        where = ["--jobs", str(options.jobs), "--out", str(options.out)]
        where += [text for path in options.known for text in ("--known", str(path))]
        length = ["--quick"] if options.quick else ["--seeds", options.seeds]
        subprocess.run([str(ALE), "lab", name, *where, *length], check=True)
        if not options.quick:
            shutil.copy(options.out / name / "figure.png", PICTURES / f"{name}.png")
            shutil.copy(options.out / name / "table.md", HERE / f"{name}.md")
            shutil.copy(options.out / name / "data.json", HERE / f"{name}.json")


if __name__ == "__main__":
    main()
