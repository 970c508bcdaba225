"""Measures the ROCK service (`ale rock serve`) and compares it with `rocklet` of ROCK 1.11.0 and with SWE-ReX.

    python benchmarks/rock.py beside    # sessions, commands and uploads, side by side in each round
    python benchmarks/rock.py starts    # start to first command, cold and warm, at 1, 16 and 64 at once
    python benchmarks/rock.py outside   # by ROCK's own client: 200 sandboxes at once, 1 GiB uploaded, a WebSocket
    python benchmarks/rock.py idle      # a thousand live idle sandboxes: memory of each
    python benchmarks/rock.py admin     # the admin alone with simulated workers: 50,000 live, 500 creates a second
    python benchmarks/rock.py fuzz      # 20,000 requests made from the OpenAPI document; needs schemathesis
    python benchmarks/rock.py           # all of them

Small numbers, to see that it works: `--at-once 1,2 --rounds 2 --starts 4 --outside 4 --mib 8 --idle 10 --workers 10
--live 100 --rates 20 --seconds 2 --churn 100 --examples 100`. A ratio is their time divided by ours in one round, with
the quartiles over the rounds. What each part does stands in its file in `rock_parts`. Theirs are installed by name into
environments in a temporary folder that is removed at the end; `--swerex PYTHON` and `--rocklet PYTHON` name
interpreters that have them already, and `none` leaves one out. Our client of ROCK is that of `rl-rock` in this Python.
A part that fails does not keep the others from being measured."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import tempfile
import time
import traceback
from pathlib import Path

from contenders.sessions import make_environment
from rock_parts.admin_alone import measure_admin
from rock_parts.beside import measure_beside
from rock_parts.fuzz import measure_fuzz
from rock_parts.idle import measure_idle
from rock_parts.outside import measure_outside
from rock_parts.starts import measure_starts

SWEREX = ["swe-rex==1.4.0"]
ROCK = ["rl-rock==1.11.0", "fastapi", "uvicorn", "pexpect", "bashlex", "psutil", "python-multipart"]
PARTS = ("beside", "starts", "outside", "idle", "admin", "fuzz")


def numbers(text: str) -> list[int]:
    """Return numbers with commas between."""
    return [int(each) for each in text.split(",")]


def read_options() -> argparse.Namespace:
    """Read the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (all)")
    options.add_argument("--at-once", type=numbers, help="how many at once (beside: 1,8,64; starts: 1,16,64)")
    options.add_argument("--rounds", type=int, default=8, help="beside: rounds, two at least (%(default)s)")
    options.add_argument("--swerex", metavar="PYTHON", help="beside: an interpreter that has swe-rex; or none")
    options.add_argument("--rocklet", metavar="PYTHON", help="beside: one that has rl-rock and its server's packages")
    options.add_argument("--starts", type=int, default=128, help="starts: starts for each number (%(default)s)")
    options.add_argument(
        "--warm-options", metavar="OPTIONS", help="starts: options of `ale rock serve` that keep sandboxes ready"
    )
    options.add_argument("--outside", type=int, default=200, help="outside: sandboxes (%(default)s)")
    options.add_argument("--mib", type=int, default=1024, help="outside: MiB that are uploaded (%(default)s)")
    options.add_argument("--idle", type=int, default=1000, help="idle: sandboxes (%(default)s)")
    options.add_argument("--workers", type=int, default=1000, help="admin: simulated workers (%(default)s)")
    options.add_argument("--live", type=int, default=50_000, help="admin: live sandboxes (%(default)s)")
    options.add_argument("--rates", type=numbers, default=[500], help="admin: creates a second (500)")
    options.add_argument("--seconds", type=float, default=30, help="admin: seconds of each rate (%(default)s)")
    options.add_argument("--churn", type=int, default=50_000, help="admin: sandboxes replaced (%(default)s)")
    options.add_argument("--examples", type=int, default=20_000, help="fuzz: requests, about (%(default)s)")
    chosen = options.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        options.error(f"no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    return chosen


async def main() -> None:
    """Install, measure, clean up."""
    chosen = read_options()
    folder = Path(tempfile.mkdtemp(prefix="ale-bench-"))
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # nothing is left running
    try:
        failed = []
        for part in chosen.parts or PARTS:
            print(f"--- {part}", flush=True)
            began = time.perf_counter()
            try:
                await measure(part, folder, chosen)
            except Exception:  # the other parts are measured all the same
                traceback.print_exc()
                failed.append(part)
            print(f"--- {part} took {time.perf_counter() - began:.0f} s\n", flush=True)
        if failed:
            raise SystemExit(f"failed: {', '.join(failed)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def measure(part: str, folder: Path, chosen: argparse.Namespace) -> None:
    """Measure one part."""
    if part == "beside":
        found = {
            name: given or make_environment(folder, name, packages)
            for name, given, packages in (("swerex", chosen.swerex, SWEREX), ("rocklet", chosen.rocklet, ROCK))
        }
        swerex, rocklet = (None if each == "none" else each for each in found.values())
        await measure_beside(folder, swerex, rocklet, chosen.at_once or [1, 8, 64], chosen.rounds)
    elif part == "starts":
        await measure_starts(folder, chosen.at_once or [1, 16, 64], chosen.starts, chosen.warm_options)
    elif part == "outside":
        await measure_outside(folder, chosen.outside, chosen.mib)
    elif part == "idle":
        await measure_idle(folder, chosen.idle)
    elif part == "fuzz":
        await measure_fuzz(folder, chosen.examples)
    else:
        await measure_admin(folder, chosen.workers, chosen.live, chosen.rates, chosen.seconds, chosen.churn)


if __name__ == "__main__":
    asyncio.run(main())
