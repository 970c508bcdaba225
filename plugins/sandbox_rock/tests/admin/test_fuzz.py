"""The service against its OpenAPI document: whatever the schemas allow or forbid, it answers, and never with a fault.

schemathesis makes the requests, the same in every run: each field at the bounds of its schema and beyond, then whole
bodies. `benchmarks/rock.py fuzz` sends many more, to a service with real sandboxes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import content_type_conformance, unsupported_method
from simulated_workers import SimulatedWorkers

from ale_rock.admin.responses import INTERNAL
from ale_rock.admin.settings import Settings
from ale_rock.app import make_app
from ale_rock.http.server import listener_at, serving, url_of

EXAMPLES, ANSWER_S = 5, 60.0
LIMITS: dict[str, Any] = {"answer_within_s": 0.2, "startup_timeout_s": 0.5, "sandboxes_per_user": 1000}
"""A start waits no longer for room that no simulated worker has."""
SCHEMA = schemathesis.openapi.from_dict(make_app(Settings(database="sqlite://")).openapi())
SCHEMA.config.generation.update(deterministic=True, max_examples=EXAMPLES)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with simulated workers, in a thread, with a sandbox `honest`."""
    folder: Path = tmp_path_factory.mktemp("fuzzed")
    listener, ended, ready = listener_at("127.0.0.1", 0), threading.Event(), threading.Event()
    where = url_of(listener)

    async def serve() -> None:
        app = make_app(Settings(database=f"sqlite:///{folder}/rock.sqlite", **LIMITS))
        async with serving(app, listener), SimulatedWorkers(where, 2):
            ready.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(120)
    yield where
    ended.set()
    thread.join()


@SCHEMA.parametrize()
@settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_every_operation_answers_and_none_fails(case: Any, url: str) -> None:
    response = case.call(base_url=url, timeout=ANSWER_S)
    case.validate_response(response, checks=[content_type_conformance, unsupported_method])
    # No simulated sandbox plays an environment of GEM: that is the sandbox's fault, in a sentence.
    assert response.status_code < 500 or (response.status_code == 503 and case.path.endswith("/gem/make")), (
        response.text
    )
    if response.status_code == 200 and "/apis/envs/sandbox/v1/" in case.path and "json" in str(response.headers):
        found = response.json()
        assert found["status"] in ("Success", "Failed")
        reason = (found["result"] or {}).get("failure_reason", "") if found["status"] == "Failed" else ""
        assert reason != INTERNAL, case.as_curl_command()


def test_the_service_still_starts_sandboxes(url: str) -> None:
    started = httpx.post(f"{url}/apis/envs/sandbox/v1/start_async", json={"image": "a"}, timeout=ANSWER_S).json()
    assert started["status"] == "Success", started


@pytest.mark.parametrize("unreachable", ["https://..", "https:///a", "http://" + "a" * 70, "http://x:99999"])
def test_a_worker_at_a_url_that_no_request_can_reach_is_refused(url: str, unreachable: str) -> None:
    asked = {"name": "w", "provider": "p", "url": unreachable, "cpus": 1, "memory_bytes": 1, "disk_bytes": 1}
    refused = httpx.post(f"{url}/apis/workers/v1/register", json=asked, timeout=ANSWER_S)
    assert (refused.status_code, refused.json()["fault"]) == (400, "caller")
    assert "URL cannot be used" in refused.json()["detail"]
