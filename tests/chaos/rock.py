"""Kills, pauses and cuts off the parts of a ROCK service under load; then checks that nothing was lost, kept or wrong.

    python tests/chaos/rock.py --runs 100 --seed 1 --table tests/chaos/rock_results.md

1. A service is `ale rock serve --worker none` with two `ale rock worker` of local sandboxes (`rock_parts.py`), in turn
   on PostgreSQL and on SQLite. Clients (`rock_load.py`) start, use and stop sandboxes all the time and check answers.
2. A run is a fault (`rock_faults.py`), sometimes with a second one beside it. *Recovered* is a service when a new
   sandbox starts and answers, *settled* when, with clients at rest, what the admin lists is what lives on the machines.
3. After a run: each sandbox that a client has is the same as before, or its loss is reported and was due to the fault.
   After a service's last run, nothing is left of it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "sandbox_rock" / "tests"))
import namespaces
from postgres_server import why_not
from rock_faults import FAULTS, possible
from rock_load import Client, Load
from rock_parts import TOKENS, RockService, has_network, make_bridge

from ale_rock.client.service_client import ServiceClient
from ale_testing.processes import below, command_line, running

WORKERS, CLIENTS = 2, 6
ROUND = 20
"""Runs on one service."""
TWO_FAULTS = 0.25
SETTLED_S = 30.0
CALM_S = 1.5
COUNTED = ("starts", "answers", "wrong_answers", "errors", "lost")
HEAD = """# A ROCK service whose parts were killed, paused or cut off under load

Made by `make chaos-rock` (seed {seed}). `rock.py` says how runs are made and what is checked, `rock_faults.py` what is
done to the service, and `rock_load.py` what its clients do. A run with two faults counts for both. Times are counted
from when a part was killed, or from when what was held up went on.
"""


@dataclass
class Outcome:
    """What became of a run: its faults, what is wrong in sentences, and seconds from the faults' last until then."""

    names: list[str]
    database: str
    wrong: list[str] = field(default_factory=list)
    recovered_s: float = 0.0
    settled_s: float = 0.0


class ServiceUnderLoad:
    """A service with its clients."""

    def __init__(self, service: RockService, seed: str) -> None:
        self.service = service
        self.client = ServiceClient(service.url, {"Authorization": f"Bearer {TOKENS['user']}"})
        self.load = Load(self.client, service.machines)
        self.clients = [Client(self.load, f"c{n}", random.Random(f"{seed}-{n}")) for n in range(CLIENTS)]
        self.probe = Client(self.load, "probe", random.Random(seed))
        self._tasks = [asyncio.create_task(each.run()) for each in self.clients]

    async def attempt(self, names: Sequence[str], rng: random.Random) -> Outcome:
        """Inflict faults, and check the service afterwards."""
        outcome = Outcome([*names], self.service.database)
        await asyncio.sleep(rng.uniform(0.3, CALM_S))
        began = max(await asyncio.gather(*(self._inflict(name, n, rng) for n, name in enumerate(names))))
        await self.probe.try_service()
        outcome.recovered_s = time.monotonic() - began
        await self.load.pause()
        await self._settle()
        outcome.settled_s = time.monotonic() - began
        await asyncio.gather(*(self._look(each) for each in self.clients))
        self.load.may_be_lost.clear()
        outcome.wrong, self.load.wrong = self.load.wrong, []
        outcome.wrong += [f"a client has failed: {task.exception()!r}" for task in self._tasks if task.done()]
        self.load.going.set()
        return outcome

    async def _inflict(self, name: str, nth: int, rng: random.Random) -> float:
        await asyncio.sleep(nth * rng.uniform(0.0, 2.0))
        return await FAULTS[name](self.service, self.load, rng)

    async def _look(self, client: Client) -> None:
        client.boxes = [box for box in client.boxes if await client.look(box)]

    async def _settle(self) -> None:
        """Wait until what the admin lists is what lives."""
        until = time.monotonic() + SETTLED_S
        while differences := await self._differences():
            if time.monotonic() > until:
                self.load.wrong += [f"after {SETTLED_S:.0f} s, {each}" for each in differences]
                return
            await asyncio.sleep(0.1)

    async def _differences(self) -> list[str]:
        status, found = await self.service.ask("status"), await self.service.ask("sandboxes")
        if status is None or found is None:
            return ["the admin does not answer"]
        machines = self.service.machines
        listed = {(each["id"], each["worker"], each["state"]) for each in found["sandboxes"]}
        living = {(name, machine.name, "running") for machine in machines for name in machine.living()}
        wrong = [f"it lives and is not listed: {each}" for each in living - listed]
        wrong += [f"it is listed and does not live: {each}" for each in listed - living]
        wrong += [
            f"{each['name']}: {each['not_removed']} not removed" for each in status["workers"] if each["not_removed"]
        ]
        if (count := len(status["workers"])) != WORKERS:
            wrong.append(f"there are {count} workers")
        if status["database"] != "ok":
            wrong.append(status["database"])
        return wrong + self._strays()

    def _strays(self) -> list[str]:
        """Sandboxes that have outlived their worker are children of the first process."""
        strays = running(below(1) - below() - {os.getpid()})
        return [f"a process belongs to nobody: {command_line(pid)[:3]}" for pid in strays]

    async def close(self) -> list[str]:
        """End clients and service; returns what is wrong with that."""
        await self.load.pause()
        self.load.over = True
        self.load.going.set()
        await asyncio.gather(*self._tasks)
        await asyncio.gather(*(each.stop_all() for each in self.clients))
        await self._settle()
        await self.client.close()
        return self.load.wrong + await self.service.stop()


def choose_faults(rng: random.Random, number: int, names: Sequence[str]) -> list[str]:
    """Return the faults of a run: each in turn, after the first round sometimes with another one."""
    chosen = [names[number % len(names)]]
    if number >= len(names) and rng.random() < TWO_FAULTS:
        chosen += [name for name in [rng.choice(names)] if name != chosen[0]]
    return chosen


def make_table(names: Sequence[str], outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines of the table: a row a fault."""
    rows = [
        "| fault | runs | failed | s to recover, median | largest | s to settle, median | largest |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        had = [outcome for outcome in outcomes if name in outcome.names]
        if not had:
            rows.append(f"| {name} | 0, not possible here | | | | | |")
            continue
        times = [[each.recovered_s for each in had], [each.settled_s for each in had]]
        shown = [f"{measure(each):.1f}" for each in times for measure in (statistics.median, max)]
        rows.append(f"| {name} | {len(had)} | {sum(bool(each.wrong) for each in had)} | {' | '.join(shown)} |")
    failed = sum(bool(outcome.wrong) for outcome in outcomes)
    return [*rows, f"| all | {len(outcomes)} | {failed} | | | | |"]


def describe(counts: Counter[str]) -> str:
    """Return what the clients saw."""
    return (
        f"Clients asked {counts['starts']:,} times for a sandbox by its id, and got {counts['errors']:,} errors and "
        f"{counts['answers']:,} results of commands. {counts['wrong_answers']} of these had a wrong exit code "
        f"or output. {counts['lost']} sandboxes were reported lost."
    )


async def run_service(
    folder: Path, database: str, runs: range, seed: int, names: list[str]
) -> tuple[list[Outcome], Load]:
    """Make runs on one service."""
    service = RockService(folder, database, WORKERS, has_network())
    await service.start()
    under_load = ServiceUnderLoad(service, f"{seed}-{runs[0]}")
    can = possible(database, service.network, names)
    outcomes = []
    for number in runs:
        rng = random.Random(f"{seed}-{number}")
        outcomes.append(outcome := await under_load.attempt(choose_faults(rng, number, can), rng))
        times = f"recovered after {outcome.recovered_s:.1f} s, settled after {outcome.settled_s:.1f} s"
        print(f"run {number}, {database}: {', '.join(outcome.names)}: {times}", flush=True)
        for sentence in outcome.wrong:
            print(f"run {number}: {sentence}; see {folder}", flush=True)
    outcomes[-1].wrong += (left := await under_load.close())
    for sentence in left:
        print(f"at the end of {folder}: {sentence}", flush=True)
    return outcomes, under_load.load


def main() -> int:
    """Make the runs, print and write the table; returns the number of runs with which something was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=len(FAULTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default=",".join(FAULTS), help="which faults, with commas between them")
    parser.add_argument("--databases", default="postgresql,sqlite", help="which databases, in turn")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    names, databases = options.faults.split(","), options.databases.split(",")
    if unknown := set(names) - FAULTS.keys():
        parser.error(f"there are no faults {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    folder = namespaces.enter(network=has_network())
    folder.chmod(0o711)
    if has_network():
        make_bridge()
    if "postgresql" in databases and (why := why_not()) is not None:
        print(f"no runs on PostgreSQL: {why}")
        databases = ["sqlite"]
    outcomes: list[Outcome] = []
    counts: Counter[str] = Counter()
    for number, first in enumerate(range(0, options.runs, ROUND)):
        runs = range(first, min(first + ROUND, options.runs))
        database = databases[number % len(databases)]
        (place := folder / f"{number}-{database}").mkdir(mode=0o711)
        made, load = asyncio.run(run_service(place, database, runs, options.seed, names))
        outcomes += made
        counts += Counter({name: getattr(load, name) for name in COUNTED})
        if options.table is not None:  # after each service, so that a run of hours that is ended has its table
            text = [HEAD.format(seed=options.seed), *make_table(names, outcomes), "", describe(counts), ""]
            options.table.write_text("\n".join(text))
    print("\n".join([*make_table(names, outcomes), describe(counts)]))
    return sum(bool(outcome.wrong) for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(min(1, main()))
