"""Who may do what, and what nobody may."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
from pydantic import ValidationError

from ale_rock.admin.settings import Settings
from ale_rock.schemas import ALE_BASE, ROCK_BASE, WORKERS_BASE

TOKENS = {"admin": "a" * 20, "anna": "b" * 20, "bert": "c" * 20, "worker": "d" * 20, "team": "e" * 20}
SETTINGS = {
    "tokens": [
        {"token": TOKENS["admin"], "role": "admin"},
        {"token": TOKENS["anna"], "role": "user", "user": "anna"},
        {"token": TOKENS["bert"], "role": "user", "user": "bert"},
        {"token": TOKENS["team"], "role": "user"},
        {"token": TOKENS["worker"], "role": "worker"},
    ],
    "worker__admin_token": TOKENS["worker"],
}


def shown(name: str) -> dict[str, str]:
    """The header with a token."""
    return {"Authorization": f"Bearer {TOKENS[name]}"}


async def test_without_a_token_nothing_is_done(serve):
    async with serve(**SETTINGS) as admin:
        for headers in ({}, {"Authorization": "Bearer wrong-wrong-wrong-wrong"}, {"Authorization": TOKENS["anna"]}):
            answer = await admin.post("/start_async", {"image": "a"}, **headers)
            assert answer["result"]["code"] == 4000
            assert "token" in answer["message"]
            assert (await admin.http.get(f"{ALE_BASE}/status", headers=headers)).status_code == 401
            assert (await admin.http.post(f"{WORKERS_BASE}/heartbeat", json={}, headers=headers)).status_code == 401
            assert (await admin.http.post("/env/list", json={}, headers=headers)).status_code == 401
            assert (await admin.http.post("/apis/v1/envs/gem/list", json={"sandbox_id": "a"}, headers=headers)
                    ).status_code == 401  # fmt: skip
        assert not admin.workers[0].sandboxes
        assert (await admin.http.get("/health")).status_code == 200


@pytest.mark.parametrize("header", ["Authorization", "XRL-Authorization", "X-API-Key"])
async def test_a_token_may_come_in_the_headers_that_clients_have(serve, header):
    async with serve(**SETTINGS) as admin:
        value = TOKENS["anna"] if header == "X-API-Key" else f"Bearer {TOKENS['anna']}"
        await admin.start({header: value})


async def test_another_users_sandbox_looks_like_none(serve):
    async with serve(**SETTINGS, worker__images=("python:3.11", "other:1")) as admin:
        sandbox_id = await admin.start(shown("anna"), sandbox_id="annas")
        assert admin.service.fleet.live[sandbox_id].user == "anna"
        unknown = await admin.post("/stop", {"sandbox_id": "nobodys"}, **shown("bert"))
        for path, body in (
            ("/stop", {}), ("/execute", {"command": "ls"}), ("/read_file", {"path": "/a"}),
            ("/restart", {}), ("/commit", {"image_tag": "a"}),
        ):  # fmt: skip
            answer = await admin.post(path, {"sandbox_id": sandbox_id, **body}, **shown("bert"))
            assert answer["message"] == unknown["message"].replace("nobodys", "annas")
        unknown = await admin.post("/delete", {"sandbox_id": "nobodys"}, **shown("bert"))
        deleted = await admin.post("/delete", {"sandbox_id": sandbox_id}, **shown("bert"))
        assert deleted["result"] == unknown["result"].replace("nobodys", "annas")
        assert admin.service.fleet.live[sandbox_id].alive
        exec_path = f"{ALE_BASE}/sandboxes/{sandbox_id}/exec"
        assert (await admin.http.post(exec_path, json={"command": "ls"}, headers=shown("bert"))).status_code == 404
        assert (await admin.get("/sandboxes", shown("bert")))["result"]["total"] == 0
        assert (await admin.get("/sandboxes", shown("team")))["result"]["total"] == 1
        assert (await admin.get("/sandboxes", shown("admin")))["result"]["total"] == 1
        for name, seen in (("admin", ["other:1", "python:3.11"]), ("anna", ["python:3.11"]), ("bert", [])):
            status, overview = [(await admin.http.get(f"{ALE_BASE}/{path}", headers=shown(name))).json()
                                for path in ("status", "overview")]  # fmt: skip
            assert status["workers"][0]["images"] == overview["workers"]["items"][0]["images"] == seen
            assert [each["image"] for each in overview["images"]["items"]] == seen
        taken = await admin.post("/start_async", {"image": "python:3.11", "sandbox_id": "annas"}, **shown("bert"))
        assert taken["result"]["code"] == 4000
        await admin.post("/stop", {"sandbox_id": sandbox_id}, **shown("anna"))
        taken = await admin.post("/start_async", {"image": "python:3.11", "sandbox_id": "annas"}, **shown("bert"))
        assert "taken" in taken["message"]
        hidden = await admin.get("/get_status", shown("bert"), sandbox_id="annas", include_all_states=True)
        assert hidden["result"]["code"] == 4000


async def test_a_user_cannot_act_for_another_nor_a_worker_for_a_user(serve):
    async with serve(**SETTINGS) as admin:
        answer = await admin.post("/start_async", {"image": "a"}, **shown("anna"), **{"X-User-Id": "bert"})
        assert "belongs to 'anna'" in answer["message"]
        assert "role worker" in (await admin.post("/start_async", {"image": "a"}, **shown("worker")))["message"]
        register = admin.workers[0].register.model_dump(mode="json")
        refused = await admin.http.post(f"{WORKERS_BASE}/register", json=register, headers=shown("anna"))
        assert refused.status_code == 403
        urls = [
            worker["url"]
            for worker in (await admin.http.get(f"{ALE_BASE}/status", headers=shown("anna"))).json()["workers"]
        ]
        assert urls == ["http://127.0.0.1"]


async def test_a_token_bounds_the_priority_the_namespace_and_the_network_of_what_it_starts(serve):
    own = {"anna": {"namespaces": ["maths", "code"], "priority": 5}, "bert": {"priority": -5}}
    tokens = [each | own.get(each.get("user"), {}) for each in SETTINGS["tokens"]]
    async with serve(**SETTINGS | {"tokens": tokens}) as admin:
        for name, asked, refusal in (
            ("anna", {"X-Priority": "6"}, "above 5"),
            ("anna", {"X-Namespace": "physics"}, "it has maths, code"),
            ("bert", {"X-Namespace": "maths"}, "it has none"),
            ("bert", {"X-Priority": "0"}, "above -5"),
            ("bert", {"X-Network": "full"}, "Only an admin"),
        ):
            answer = await admin.post("/start_async", {"image": "a"}, **shown(name), **asked)
            assert (answer["result"].get("code"), refusal in answer["message"]) == (4000, True), answer
        for name, asked, namespace, priority in (
            ("anna", {}, "maths", 0),
            ("anna", {"X-Namespace": "code", "X-Priority": "5"}, "code", 5),
            ("bert", {}, None, -5),
            ("admin", {"X-Namespace": "physics", "X-Priority": "100", "X-Network": "full"}, "physics", 100),
        ):
            record = admin.service.fleet.live[await admin.start(shown(name) | asked)]
            assert (record.namespace, record.priority) == (namespace, priority)


async def test_a_token_has_its_rate(serve):
    async with serve(**SETTINGS, requests_per_s=0.001, burst=3) as admin:
        answers = [await admin.get("/sandboxes", shown("anna")) for _ in range(4)]
        assert [answer["status"] for answer in answers] == ["Success"] * 3 + ["Failed"]
        assert "come back in" in answers[-1]["message"]
        assert (await admin.get("/sandboxes", shown("bert")))["status"] == "Success"
        slow = await admin.http.get(f"{ALE_BASE}/status", headers=shown("anna"))
        assert slow.status_code == 429


def test_only_a_loopback_address_is_served_without_tokens():
    with pytest.raises(ValidationError, match="nobody needs a token"):
        Settings(host="0.0.0.0")
    assert Settings(host="::1").host == "::1"
    assert Settings(host="0.0.0.0", tokens=SETTINGS["tokens"]).tokens
    with pytest.raises(ValidationError, match="asynchronous"):
        Settings(database="sqlite+aiosqlite:///x")
    with pytest.raises(ValidationError, match="no SQLAlchemy URL"):
        Settings(database="nonsense")


async def test_without_tokens_a_page_in_a_browser_reaches_nothing(admin):
    answer = await admin.post("/start_async", {"image": "a"}, Host="evil.example")
    assert "Host" in answer["message"]
    form = await admin.http.post(
        f"{ROCK_BASE}/start_async", content=b'{"image": "a"}', headers={"Content-Type": "text/plain"}
    )
    assert form.json()["status"] == "Failed"
    assert not admin.service.fleet.live


async def test_secrets_reach_the_worker_and_nothing_else(serve, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with serve(**SETTINGS) as admin:
        secret = {"registry_username": "u", "registry_password": "s3cret-one", "env": {"KEY": "s3cret-two"}}
        sandbox_id = await admin.start(shown("anna"), **secret)
        order = admin.workers[0].sandboxes[sandbox_id]
        assert (order.registry_password, order.spec.env["KEY"]) == ("s3cret-one", "s3cret-two")
        wrong = await admin.post("/start_async", {**secret, "image": "a", "cpus": -1}, **shown("anna"))
        wrong_too = await admin.post("/start_async", {"image": "a", "env": "s3cret-three"}, **shown("anna"))
        status = await admin.get("/get_status", shown("anna"), sandbox_id=sandbox_id)
    written = b"".join(file.read_bytes() for file in tmp_path.glob("rock.sqlite*"))
    told = f"{wrong}{wrong_too}{status}{caplog.text}".encode() + written
    assert b"s3cret" not in told
    for token in TOKENS.values():
        assert token.encode() not in told
    assert sandbox_id.encode() in written


async def test_bodies_are_bounded_in_size_and_slowness(serve):
    async with serve(body_limit_bytes=1000, upload_limit_bytes=2000, body_timeout_s=1.0) as admin:
        sandbox_id = await admin.start()
        large = await admin.post("/execute", {"sandbox_id": sandbox_id, "command": "x" * 1000})
        assert "larger than 1000 bytes" in large["message"]

        async def pieces():
            for _ in range(30):
                yield b" " * 100

        unstated = await admin.http.post(f"{ROCK_BASE}/execute", content=pieces())
        assert "larger than 1000 bytes" in unstated.json()["message"]
        files = f"{ALE_BASE}/sandboxes/{sandbox_id}/files?path=/x"
        assert (await admin.http.put(files, content=b"x" * 2001)).status_code == 413
        assert (await admin.http.put(files, content=pieces())).status_code == 413
        assert (await admin.http.put(files, content=b"x" * 1999)).status_code == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", int(admin.url.rpartition(":")[2]))
        head = f"POST {ROCK_BASE}/execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nx"
        writer.write(head.encode())
        assert b"too slowly" in await reader.readuntil(b"}}")
        writer.close()
        assert (await admin.status(sandbox_id))["is_alive"]


@pytest.mark.parametrize(
    "path", ["/sandboxes/..%2F..%2Fetc/archive", "/commit/..%2Fx", "/get_status?sandbox_id=../x%00"]
)
async def test_ids_that_are_paths_lead_nowhere(admin, path):
    method = "GET" if "archive" not in path else "POST"
    answer = await admin.http.request(method, ROCK_BASE + path, json={} if method == "POST" else None)
    assert answer.status_code in (200, 404)
    assert answer.status_code == 404 or answer.json()["result"]["code"] == 4000


async def test_a_header_cannot_carry_another(admin):
    with socket.create_connection(("127.0.0.1", int(admin.url.rpartition(":")[2]))) as connection:
        await asyncio.to_thread(
            connection.sendall,
            f"GET {ROCK_BASE}/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-User-Id: a\x01b\r\n"
            "Connection: close\r\n\r\n".encode(),
        )
        answer = await asyncio.to_thread(lambda: connection.makefile("rb").read())
    assert b'"Success"' not in answer
