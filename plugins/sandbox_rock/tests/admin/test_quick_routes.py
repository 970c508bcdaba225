"""The routes that are found and read without FastAPI: which these are, and that they answer as FastAPI would."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.routing import Match

from ale_rock.admin.settings import Settings
from ale_rock.app import make_app
from ale_rock.schemas import ALE_BASE, ROCK_BASE, WORKERS_BASE

JSON = "application/json"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", f"{ROCK_BASE}/{name}") for name in ("start_async", "stop", "execute", "run_in_session")),
        *(("GET", f"{ROCK_BASE}/{name}") for name in ("get_status", "is_alive")),
        ("POST", f"{WORKERS_BASE}/heartbeat"),
        ("POST", f"{ALE_BASE}/sandboxes/{{sandbox_id}}/exec"),
    ],
)
def test_what_is_asked_most_often_is_found_at_once_and_documented(method: str, path: str) -> None:
    app = make_app(Settings(database="sqlite://"))
    scope = {"type": "http", "method": method, "path": path}
    match, found = app.router.routes[0].matches(scope)
    assert (match, found["route"].path) == (Match.FULL, path)
    assert app.router.routes[0].matches({**scope, "method": "TRACE"})[0] == Match.NONE
    described = app.openapi()["paths"][path][method.lower()]
    assert ("requestBody" in described) == (method == "POST")


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        (b'{"image": 1, "cpus": "many"}', JSON, "image: Input should be a valid string; cpus: Input should be a valid"),
        (b'{"image": "a"', JSON, "JSON decode error"),
        (b'{"image": "\\ud800"}', JSON, "image: Input should be a valid string"),
        (b"", JSON, "body: Field required"),
        (b"[]", JSON, "body: Input should be a valid dictionary"),
        (b'{"image": "a"}', "text/plain", "body: Input should be a valid dictionary"),
    ],
)
async def test_a_body_that_is_refused_is_refused_in_fastapis_words(
    admin: Any, body: bytes, kind: str, why: str
) -> None:
    answer = await admin.http.post(f"{ROCK_BASE}/start_async", content=body, headers={"Content-Type": kind})
    assert answer.json()["message"] == "invalid parameter"
    assert why in answer.json()["error"]
    assert not admin.service.fleet.live


async def test_queries_are_read_by_their_types(admin: Any) -> None:
    sandbox_id = await admin.start()
    await admin.post("/stop", {"sandbox_id": sandbox_id})
    asked = {"sandbox_id": sandbox_id}
    assert (await admin.get("/get_status", **asked, include_all_states="yes"))["result"]["state"] == "stopped"
    assert "was not found" in (await admin.get("/get_status", **asked, include_all_states="0"))["error"]
    wrong = await admin.get("/get_status", **asked, include_all_states="perhaps")
    assert "include_all_states: Input should be a valid boolean" in wrong["error"]
    assert "sandbox_id: Field required" in (await admin.get("/get_status"))["error"]


async def test_a_request_that_is_refused_counts_once(serve: Any) -> None:
    token = {"token": "secret-of-anna-0123", "role": "user"}
    async with serve(tokens=(token,), requests_per_s=1e-3, burst=2, workers=0) as admin:
        shown = {"X-API-Key": token["token"]}
        answers = [await admin.post("/stop", {}, **shown) for _ in range(3)]
    assert ["Field required" in each["error"] for each in answers] == [True, True, False]
