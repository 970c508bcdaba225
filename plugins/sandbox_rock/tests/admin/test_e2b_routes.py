"""E2B's control plane with simulated workers: who is let in, what is listed, and what a start asks of a worker."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from attack_tools import SETTINGS, TOKENS

from ale_rock.e2b import DOMAIN
from ale_rock.e2b.errors import E2bError
from ale_rock.e2b.requests import NewSandbox, spec_of


def key(name: str) -> dict[str, str]:
    """What E2B's SDK sends as its API key."""
    return {"X-API-KEY": TOKENS[name]}


async def create(admin: Any, headers: dict[str, str] | None = None, **asked: Any) -> dict[str, Any]:
    """Start a sandbox as E2B's SDK does."""
    answer = await admin.http.post("/v2/sandboxes", json={"templateID": "base", **asked}, headers=headers)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def test_a_sandbox_has_an_access_token_of_its_own(serve: Any) -> None:
    async with serve(**SETTINGS) as admin:
        annas, berts = await create(admin, key("anna")), await create(admin, key("bert"))
        assert annas["envdAccessToken"] not in TOKENS.values()
        again = await admin.http.post(f"/v2/sandboxes/{annas['sandboxID']}/connect", json={}, headers=key("anna"))
        assert (again.status_code, again.json()["envdAccessToken"]) == (200, annas["envdAccessToken"])

        async def ask(box: dict[str, Any], **headers: str | bytes) -> httpx.Response:
            return await admin.http.get("/health", headers={"E2b-Sandbox-Id": box["sandboxID"], **headers})

        own = {"X-Access-Token": annas["envdAccessToken"]}
        assert (await ask(annas, **own)).status_code == 204
        assert (await ask(annas, **{"E2B-Traffic-Access-Token": annas["trafficAccessToken"]})).status_code == 204
        by_host = await admin.http.get("/health", headers={"Host": f"49983-{annas['sandboxID']}.{DOMAIN}", **own})
        assert by_host.status_code == 204
        for headers in ({}, {"X-Access-Token": TOKENS["anna"]}, {"X-Access-Token": b"\xe9"}, key("worker")):
            refused = await ask(annas, **headers)
            assert refused.status_code in (401, 403), headers
            assert refused.json()["code"] == refused.status_code
        assert (await ask(berts, **own)).status_code == 401
        missing = await ask({"sandboxID": annas["sandboxID"]}, **key("bert"))
        assert (missing.status_code, "was not found" in missing.json()["message"]) == (502, True)
        assert (await admin.http.get("/health")).json() == {"status": "ok"}, "it names no sandbox"


async def test_a_page_of_another_site_reaches_no_sandbox(admin: Any) -> None:
    box = await create(admin)
    host = f"49983-{box['sandboxID']}.{DOMAIN}"
    for headers, allowed in (
        ({"Host": host}, True),
        ({"Host": host, "Origin": f"http://{host}"}, True),
        ({"Host": host, "Origin": "http://evil.example"}, False),
        ({"Host": f"49983-{box['sandboxID']}.evil.example", "E2b-Sandbox-Id": box["sandboxID"]}, False),
        ({"Origin": "http://evil.example", "E2b-Sandbox-Id": box["sandboxID"]}, False),
    ):
        answer = await admin.http.get("/health", headers=headers)
        assert (answer.status_code != 403) == allowed, headers


async def test_ports_and_paths_that_are_none_are_refused(admin: Any) -> None:
    sandbox_id = (await create(admin))["sandboxID"]
    for port, path, status in (("x", "/", 400), ("70000", "/", 400), ("49983", "/init", 404)):
        answer = await admin.http.get(path, headers={"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": port})
        assert answer.status_code == status, (port, path)
    by_host = await admin.http.get("/init", headers={"Host": f"49983-{sandbox_id}.{DOMAIN}"})
    assert (by_host.status_code, "envd" in by_host.json()["message"]) == (404, True)


async def test_a_request_about_a_sandbox_may_name_it_by_header_too(admin: Any) -> None:
    sandbox_id = (await create(admin))["sandboxID"]
    headers = {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": "49983"}
    answer = await admin.http.post(f"/sandboxes/{sandbox_id}/connect", json={"timeout": 9}, headers=headers)
    assert answer.json()["sandboxID"] == sandbox_id, "as older SDKs do"


async def test_a_request_that_is_sent_again_finds_the_same_sandbox(admin: Any) -> None:
    once = {"Idempotency-Key": "one"}
    first = await create(admin, once, metadata={"a": "b"})
    assert (await create(admin, once, metadata={"a": "b"}))["sandboxID"] == first["sandboxID"]
    assert (await create(admin, {"Idempotency-Key": "two"}))["sandboxID"] != first["sandboxID"]
    other = await admin.http.post(
        "/v2/sandboxes", json={"templateID": "base", "timeout": 9, "metadata": {}}, headers=once
    )
    assert (other.status_code, "another spec" in other.json()["message"]) == (400, True)


async def test_lists_are_filtered_ordered_and_paged(admin: Any) -> None:
    made = [(await create(admin, metadata={"n": str(n), "odd": str(n % 2)}))["sandboxID"] for n in range(5)]
    paused = made[1]
    assert (await admin.http.post(f"/sandboxes/{paused}/pause")).status_code == 204

    async def listed(path: str = "/v2/sandboxes", **query: Any) -> list[str]:
        answer = await admin.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return [each["sandboxID"] for each in answer.json()]

    assert set(await listed()) == set(made)
    assert await listed(order="asc", state="running") == [each for each in made if each != paused]
    assert await listed(state="paused") == [paused]
    assert set(await listed(state=["running", "paused"])) == set(await listed(state="running,paused")) == set(made)
    assert await listed("/sandboxes", metadata="odd=1") == [made[3]]
    assert await listed(metadata="n=4&odd=0") == [made[4]]
    assert await listed(template="python") == []
    page = await admin.http.get("/v2/sandboxes", params={"limit": 3, "order": "asc"})
    rest = await listed(limit=3, order="asc", nextToken=page.headers["X-Next-Token"])
    assert [each["sandboxID"] for each in page.json()] + rest == made
    for wrong in ({"state": "gone"}, {"order": "up"}, {"limit": 0}, {"nextToken": "x"}, {"startedAfter": "soon"}):
        refused = await admin.http.get("/v2/sandboxes", params=wrong)
        assert (refused.status_code, refused.json()["code"]) == (400, 400), wrong


async def test_a_paused_sandbox_and_its_metadata_outlive_the_service(serve: Any) -> None:
    async with serve() as admin:
        sandbox_id = (await create(admin, metadata={"kind": "kept"}))["sandboxID"]
        assert (await admin.http.post(f"/sandboxes/{sandbox_id}/pause", json={"memory": False})).status_code == 204
    async with serve() as admin:
        [found] = (await admin.http.get("/v2/sandboxes", params={"metadata": "kind=kept"})).json()
        assert (found["sandboxID"], found["state"]) == (sandbox_id, "paused")
        assert (await admin.http.delete(f"/sandboxes/{sandbox_id}")).status_code == 204
        assert (await admin.http.get(f"/sandboxes/{sandbox_id}")).status_code == 404


async def test_older_sdks_create_resume_and_refresh(admin: Any) -> None:
    asked = {"templateID": "base", "timeout": 15, "secure": True, "allow_internet_access": True}
    answer = await admin.http.post("/sandboxes", json=asked)
    assert answer.status_code == 201, "they always ask for the internet, and get the service's default network"
    path = f"/sandboxes/{answer.json()['sandboxID']}"

    async def left_s() -> float:
        record = next(iter(admin.service.fleet.live.values()))
        return float(record.lifetime_s)

    assert (await admin.http.post(f"{path}/refreshes", json={"duration": 100})).status_code == 204
    assert await left_s() >= 100
    assert (await admin.http.post(f"{path}/refreshes", json={"duration": 5})).status_code == 204
    assert await left_s() >= 100
    assert (await admin.http.post(f"{path}/resume", json={"timeout": 15})).status_code == 409
    assert (await admin.http.post(f"{path}/connect", json={"timeout": 300})).status_code == 200
    assert await left_s() >= 300


async def test_the_services_own_limit_of_a_life_is_not_exceeded(serve: Any) -> None:
    async with serve(lifetime_s=50) as admin:
        sandbox_id = (await create(admin, timeout=3000))["sandboxID"]
        await admin.http.post(f"/sandboxes/{sandbox_id}/timeout", json={"timeout": 3000})
        assert admin.service.fleet.live[sandbox_id].lifetime_s == 50


@pytest.mark.parametrize(
    ("asked", "network"),
    [
        ({}, ("allow", ())),
        ({"allow_internet_access": True}, ("full", ())),
        ({"allow_internet_access": False}, ("none", ())),
        ({"network": {"denyOut": ["0.0.0.0/0"]}}, ("none", ())),
        ({"network": {"denyOut": ["0.0.0.0/0"], "allowOut": ["pypi.org"]}}, ("allow", ("pypi.org:443", "pypi.org:80"))),
        ({"network": {"allowOut": ["8.8.8.8:53"]}, "allow_internet_access": False}, ("allow", ("8.8.8.8:53",))),
    ],
)
def test_internet_access_is_a_network_mode(asked: dict[str, Any], network: tuple[str, tuple[str, ...]]) -> None:
    spec = spec_of(NewSandbox(**asked), "allow")
    assert (spec.network, spec.allow, spec.image, spec.workdir) == (*network, None, "/home/user")


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"network": {"allowOut": ["pypi.org"]}}, "deny_out"),
        ({"network": {"denyOut": ["10.0.0.0/8"]}}, "all traffic or none"),
        ({"network": {"rules": {"a": []}, "httpsPorts": [1]}}, "network.rules, network.httpsPorts"),
        ({"network": {"denyOut": ["0.0.0.0/0"], "allowOut": [3]}}, "list of hosts"),
        ({"network": {"denyOut": ["0.0.0.0/0"], "allowOut": ["8.8.8.8"]}}, "no host and port"),
        ({"iam": {"tokens": {}}}, "iam"),
        ({"mcp": {"x": 1}}, "mcp"),
        ({"autoResume": {"enabled": True}}, "autoResume"),
        ({"autoPause": True, "autoPauseMemory": True}, "mode 'full'"),
    ],
)
def test_what_a_sandbox_cannot_have_is_named(asked: dict[str, Any], word: str) -> None:
    with pytest.raises(E2bError, match=word):
        spec_of(NewSandbox(**asked), "none")
