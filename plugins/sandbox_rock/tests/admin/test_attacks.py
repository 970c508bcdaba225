"""Who asks without a token, with the wrong one, or about what belongs to another: each route refuses in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from attack_tools import SETTINGS, operations, sentence_of, shown

from ale_rock.schemas import ALE_BASE, ROCK_BASE

IDS = [
    "..",
    "../..",
    "..%2f..%2fetc",
    "%2e%2e%2f",
    "a%00b",
    "a%0d%0ab",
    "-rf",
    ".hidden",
    "x" * 5000,
    "ä",
    "a b",
    "'--",
]
STRANGERS: list[dict[str, str]] = [
    {},
    {"Authorization": "Bearer wrong-wrong-wrong-wrong"},
    {"Authorization": "Basic " + "a" * 20},
    {"Authorization": "Bearer"},
    {"X-API-Key": "a" * 19},
    {"X-User-Id": "anna"},
    {"Authorization": "Bearer " + "a" * 100_000},
    {"Cookie": "token=" + "a" * 20},
]


async def refuses_all(admin: Any, headers: dict[str, str], word: str) -> set[str]:
    """Return the routes that do not refuse such a caller with a sentence that has this word."""
    let_in = set()
    for each in await operations(admin.http):
        try:
            assert word in sentence_of(await each.send(admin.http, "x", headers))
        except (AssertionError, KeyError, ValueError):
            let_in.add(str(each))
    return let_in


@pytest.mark.parametrize("headers", STRANGERS)
async def test_every_route_refuses_whoever_has_no_token(serve: Any, headers: dict[str, str]) -> None:
    async with serve(**SETTINGS) as admin:
        assert await refuses_all(admin, headers, "token") == {"GET /health"}
        assert not admin.service.fleet.live


async def test_a_token_of_a_worker_opens_the_routes_of_workers_alone(serve: Any) -> None:
    async with serve(**SETTINGS) as admin:
        let_in = await refuses_all(admin, shown("worker"), "role")
        assert let_in == {"GET /health", "POST /apis/workers/v1/register", "POST /apis/workers/v1/heartbeat"}
        for name in ("anna", "admin"):
            for what in ("register", "heartbeat"):
                answer = await admin.http.post(f"/apis/workers/v1/{what}", json={}, headers=shown(name))
                assert "role" in sentence_of(answer)


async def test_every_route_about_a_sandbox_treats_anothers_like_one_that_does_not_exist(serve: Any) -> None:
    async with serve(**SETTINGS) as admin:
        sandbox_id = await admin.start(shown("anna"), sandbox_id="annas-own-sandbox")
        seen = set()
        about = [each for each in await operations(admin.http) if each.about_sandbox]
        assert len(about) > 20
        for each in about:
            theirs = await each.send(admin.http, sandbox_id, shown("bert"))
            nobodys = await each.send(admin.http, "nobodys-own-thing", shown("bert"))
            if (theirs.status_code, theirs.text.replace(sandbox_id, "nobodys-own-thing")) != (
                nobodys.status_code,
                nobodys.text,
            ):
                seen.add(str(each))
        assert not seen
        assert list(admin.workers[0].sandboxes) == [sandbox_id]
        assert not admin.workers[0].files
        assert (await admin.http.get(f"{ALE_BASE}/overview", headers=shown("bert"))).text.count("annas") == 0


async def test_a_form_for_two_sandboxes_writes_into_none_of_another(serve: Any) -> None:
    async with serve(**SETTINGS) as admin:
        annas, berts = await admin.start(shown("anna")), await admin.start(shown("bert"))
        for ids in ((annas, berts), (berts, annas)):
            parts = [("sandbox_id", (None, each)) for each in ids]
            files = [*parts, ("target_path", (None, "/tmp/x")), ("file", ("f", b"x"))]
            await admin.http.post(f"{ROCK_BASE}/upload", files=files, headers=shown("bert"))
        assert {sandbox_id for sandbox_id, _ in admin.workers[0].files} <= {berts}


async def test_a_body_with_two_ids_acts_on_what_was_checked(serve: Any) -> None:
    async with serve(**SETTINGS) as admin:
        annas, berts = await admin.start(shown("anna")), await admin.start(shown("bert"))
        for ids in ((annas, berts), (berts, annas)):
            body = f'{{"sandbox_id": "{ids[0]}", "path": "/x", "content": "x", "sandbox_id": "{ids[1]}"}}'
            headers = {**shown("bert"), "Content-Type": "application/json"}
            await admin.http.post(f"{ROCK_BASE}/write_file", content=body, headers=headers)
        assert {sandbox_id for sandbox_id, _ in admin.workers[0].files} == {berts}


async def test_a_user_cannot_take_anothers_files_by_a_snapshot_or_an_image(serve: Any) -> None:
    async with serve(**SETTINGS) as admin:
        annas = await admin.start(shown("anna"))
        committed = await admin.post("/commit", {"sandbox_id": annas, "image_tag": "annas/image"}, **shown("anna"))
        assert committed["status"] == "Success"
        (snapshot,) = admin.workers[0].snapshots
        refused = await admin.post("/start_async", {"spec": {"from_snapshot": snapshot}}, **shown("bert"))
        assert "from_snapshot" in refused["message"]
        refused = await admin.post(
            "/start_async", {"image": f"docker.io/library/ale-snapshot:{snapshot}"}, **shown("bert")
        )
        assert "snapshot" in refused["message"]
        for image in ("annas/image", snapshot):
            started = await admin.start(shown("bert"), image=image)
            assert admin.workers[0].sandboxes[started].spec.from_snapshot is None


@pytest.mark.parametrize("sandbox_id", IDS)
async def test_an_id_that_is_a_path_or_a_command_names_no_sandbox(admin: Any, sandbox_id: str) -> None:
    await admin.start(sandbox_id="honest")
    for each in await operations(admin.http):
        if each.about_sandbox and each.path.count("{sandbox_id}"):
            answer = await each.send(admin.http, sandbox_id, {})
            if answer.url.path == "/":
                continue  # where this client takes `..` itself, it asks for the overview
            assert 400 <= answer.status_code < 500 or answer.json()["status"] == "Failed", (str(each), answer.text)
    refused = await admin.post("/start_async", {"image": "a", "sandbox_id": sandbox_id})
    assert refused["result"]["code"] == 4000
    assert list(admin.service.fleet.live) == ["honest"]


async def test_a_user_cannot_choose_which_address_of_the_worker_its_sandbox_reaches(serve: Any) -> None:
    async with serve(**SETTINGS) as admin:
        for endpoint in ("unix:///run/docker.sock", "http://127.0.0.1:22", "http://169.254.169.254:80"):
            for network in ("endpoint-only", "allow", "full"):
                asked = {"spec": {"network": network, "endpoint": endpoint}}
                refused = await admin.post("/start_async", asked, **shown("bert"))
                assert refused["result"].get("code") == 4000, (endpoint, network)
                assert "endpoint" in refused["message"]
        assert not admin.workers[0].sandboxes


@pytest.mark.parametrize("how", ["field", "header", "spec", "batch", "environment"])
async def test_a_network_that_the_service_does_not_give_is_refused_however_it_is_asked_for(
    serve: Any, how: str
) -> None:
    async with serve(**SETTINGS, networks=("none",)) as admin:
        for network in ("full", "allow", "endpoint-only", "host"):
            bodies: dict[str, tuple[str, Any]] = {
                "field": ("/start_async", {"image": "a", "network": network}),
                "header": ("/start_async", {"image": "a"}),
                "spec": ("/start_async", {"spec": {"network": network}}),
                "batch": ("/start_batch", {"requests": [{"image": "a", "network": network}]}),
            }
            if how == "environment":
                spec = {"env_name": "e", "image": "a", "extra_spec": {"network": network}}
                await admin.http.post("/env/register", json=spec, headers=shown("anna"))
                made = await admin.http.post("/apis/v1/envs/gem/make", json={"env_id": "e"}, headers=shown("anna"))
                assert made.status_code >= 400
            else:
                headers = {"X-Network": network} if how == "header" else {}
                path, body = bodies[how]
                answer = await admin.post(path, body, **shown("anna"), **headers)
                refused = answer["result"][0] if how == "batch" else answer
                assert refused["status"] == "Failed", (network, refused)
                assert "network" in refused["result"]["failure_reason"]
        assert not admin.workers[0].sandboxes or how == "environment"
        assert all(order.spec.network == "none" for order in admin.workers[0].sandboxes.values())


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.0.0.7", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "localhost"]
)
async def test_a_user_cannot_allow_an_address_in_the_network_of_the_workers(serve: Any, host: str) -> None:
    async with serve(**SETTINGS) as admin:
        asked = {"image": "a", "network": "allow"}
        refused = await admin.post("/start_async", {**asked, "allow": [f"{host}:80"]}, **shown("bert"))
        assert refused["result"].get("code") == 4000
        refused = await admin.post("/start_async", asked, **shown("bert"), **{"X-Allow": f"example.org:443, {host}:80"})
        assert refused["result"].get("code") == 4000
        assert not admin.workers[0].sandboxes
        await admin.start(shown("bert"), network="allow", allow=["example.org:443", "1.1.1.1:53"])
        await admin.start(shown("admin"), network="allow", allow=["10.0.0.7:80"])
