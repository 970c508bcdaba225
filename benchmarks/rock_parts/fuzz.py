"""Requests that schemathesis makes from the service's OpenAPI document, to a whole service with local sandboxes.

Half of those about a sandbox are about one that runs, so that they reach worker and sandbox. A fault (HTTP 500, an
envelope that blames the service's own code), no answer within a minute, or a service that no longer starts a sandbox
afterwards is printed with the request that caused it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import requests
from rock_parts.service import ROCK, Service

from ale_rock.admin.responses import INTERNAL

ANSWER_S, SHOWN, MOST_TIME = 60.0, 20, 4
SETTINGS: dict[str, Any] = {
    "answer_within_s": 5, "startup_timeout_s": 10, "auto_clear_minutes": 0.2, "queue_limit": 100,
    "networks": ["none"], "lifetime_s": 300,
}  # fmt: skip
"""Sandboxes that these requests start live for a short time, and have no network."""


async def measure_fuzz(folder: Path, examples: int) -> None:
    """Send requests, about `examples` of them, and print what came back."""
    async with Service(folder / "fuzz", settings=SETTINGS, own_tmp=True) as service:
        sent = Sent()
        await asyncio.to_thread(send_all, service.url, examples, sent)
        await service.rock("/execute", {"sandbox_id": await service.start(), "command": ["true"]})
        print(f"{sum(sent.statuses.values())} requests in {sent.took_s:.0f} s, slowest {sent.slowest_s:.1f} s "
              f"({sent.slowest}); statuses {dict(sorted(sent.statuses.items()))}")  # fmt: skip
        print(f"{sum(sent.spent_s.values()):.0f} s of it in requests, most of them in:")
        for route, spent_s in sent.spent_s.most_common(MOST_TIME):
            print(f"  {spent_s:>6.1f} s {route}")
        print(f"{len(sent.faults)} faults", *sent.faults[:SHOWN], sep="\n  ", flush=True)


class Sent:
    """What came back."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.faults: list[str] = []
        self.slowest_s, self.slowest, self.took_s = 0.0, "", 0.0
        self.spent_s: Counter[str] = Counter()
        """Seconds of each route's requests, all together."""


def send_all(url: str, examples: int, sent: Sent) -> None:
    """Send them one after the other; blocks."""
    import schemathesis

    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    found: Iterable[Any] = [each.ok() for each in schema.get_all_operations()]
    operations = list(found)
    began = time.perf_counter()
    with requests.Session() as session:
        for number, operation in enumerate(operations):
            live = start(session, url)
            left = examples - sum(sent.statuses.values())  # what one route had no further requests for goes to others

            def send(case: Any, live: str = live) -> None:
                if sum(sent.statuses.values()) % 2:
                    name_sandbox(case, live)
                one(case, url, session, sent)

            repeat(operation, max(1, -(-left // (len(operations) - number))), send)
    sent.took_s = time.perf_counter() - began


def repeat(operation: Any, count: int, send: Callable[[Any], None]) -> None:
    """Make requests to one route."""
    from hypothesis import HealthCheck, Phase, given, settings

    limits = {"deadline": None, "database": None, "phases": [Phase.generate]}

    @settings(max_examples=count, suppress_health_check=list(HealthCheck), **limits)
    @given(case=operation.as_strategy())
    def run(case: Any) -> None:
        send(case)

    run()


def start(session: requests.Session, url: str) -> str:
    """Start the sandbox that some of the requests are about."""
    until = time.monotonic() + ANSWER_S
    while True:  # workers that these requests have made up are there until they are found to be silent
        answer = session.post(f"{url}{ROCK}/start_async", json={"image": "a", "memory": "128m", "cpus": 0.1}).json()
        if answer["status"] == "Success" or time.monotonic() > until:
            break
        time.sleep(1.0)
    assert answer["status"] == "Success", answer
    started: str = answer["result"]["sandbox_id"]
    session.post(f"{url}{ROCK}/create_session", json={"sandbox_id": started})
    return started


def name_sandbox(case: Any, sandbox_id: str) -> None:
    """Let a request be about this sandbox. Its log is not followed, which lasts until it ends."""
    case.query.pop("follow", None)
    for place in (case.path_parameters, case.query, case.body):
        if isinstance(place, dict) and "sandbox_id" in place:
            place["sandbox_id"] = sandbox_id


def one(case: Any, url: str, session: requests.Session, sent: Sent) -> None:
    """Send one request and note what came back."""
    began = time.perf_counter()
    try:
        response = case.call(base_url=url, session=session, timeout=ANSWER_S)
    except requests.RequestException as error:
        sent.statuses[type(error).__name__] += 1
        sent.faults.append(f"{type(error).__name__}: {case.as_curl_command()[:500]}")
        return
    took = time.perf_counter() - began
    sent.spent_s[f"{case.method} {case.path}"] += took
    if took > sent.slowest_s:
        sent.slowest_s, sent.slowest = took, f"{case.method} {case.path}"
    sent.statuses[str(response.status_code)] += 1
    if (response.status_code >= 500 and response.status_code != 503) or f'"{INTERNAL}"'.encode() in response.content:
        sent.faults.append(f"{response.status_code} {response.content[:200]!r}: {case.as_curl_command()[:500]}")
