"""ROCK's Sandbox API: every route answers with an envelope, and says what was wrong."""

from __future__ import annotations

from typing import Any

import pytest

from ale_rock.schemas import ALE_BASE, ROCK_BASE, WORKERS_BASE, Fault

from .test_access import SETTINGS, shown


async def test_a_start_is_answered_once_commands_can_run(admin):
    envelope = await admin.post("/start_async", {"image": "python:3.11", "memory": "1g", "cpus": 1, "disk": "2G"})
    result = envelope["result"]
    assert (result["cpus"], result["memory"], result["disk"]) == (1, "1g", None)
    assert result["host_name"].startswith("simulated-")
    assert result["host_ip"] == "127.0.0.1"
    status = (await admin.get("/get_status", sandbox_id=result["sandbox_id"]))["result"]
    assert status["is_alive"]
    assert status["state"] == "running"
    assert status["status"]["image_pull"]["status"] == status["status"]["docker_run"]["status"] == "success"


async def test_what_the_unmodified_client_sends_is_understood(admin):
    body = {
        "image": "python:3.11", "image_os": "linux", "auto_clear_time": 5, "auto_clear_time_minutes": 5,
        "startup_timeout": 180.0, "memory": "8g", "cpus": 2, "num_gpus": None, "accelerator_type": None,
        "registry_username": None, "registry_password": None, "use_kata_runtime": False, "limit_cpus": None,
        "sandbox_id": None, "auto_archive_seconds": None, "auto_delete_seconds": None, "disk": "50G", "new_field": 1,
    }  # fmt: skip
    headers = {"X-Cluster": "default", "X-User-Id": "anna", "X-Experiment-Id": "e1", "X-Namespace": "team"}
    started = (await admin.post("/start_async", body, **headers))["result"]
    status = await admin.status(started["sandbox_id"])
    assert (status["user_id"], status["experiment_id"], status["namespace"]) == ("anna", "e1", "team")
    assert (status["cpus"], status["memory"], status["disk"]) == (2.0, "8g", None)


async def test_the_same_request_with_the_same_id_finds_the_same_sandbox(admin):
    asked = {"sandbox_id": "mine", "image": "a", "cpus": 1}
    first, again = [await admin.post("/start_async", asked) for _ in range(2)]
    assert first == again
    assert sum(worker.started for worker in admin.workers.workers.values()) == 1
    other = await admin.post("/start_async", {**asked, "image": "b"})
    assert other["result"]["code"] == 4000
    assert "another spec" in other["message"]


async def test_many_requests_at_once_with_one_id_start_one_sandbox(admin):
    import asyncio

    answers = await asyncio.gather(*(admin.start(sandbox_id="one") for _ in range(20)))
    assert set(answers) == {"one"}
    assert sum(worker.started for worker in admin.workers.workers.values()) == 1


async def test_a_stopped_sandbox_is_found_only_by_those_who_ask_for_all_states(admin):
    sandbox_id = await admin.start()
    assert (await admin.post("/stop", {"sandbox_id": sandbox_id}))["result"] == f"{sandbox_id} stopped"
    assert (await admin.post("/stop", {"sandbox_id": sandbox_id}))["status"] == "Success"
    hidden = await admin.get("/get_status", sandbox_id=sandbox_id)
    assert "not found" in hidden["message"]
    status = await admin.status(sandbox_id)
    assert (status["state"], status["is_alive"]) == ("stopped", False)
    assert [change["to_state"] for change in status["state_history"]] == ["pending", "running", "stopped"]
    assert not any(worker.sandboxes for worker in admin.workers.workers.values())


async def test_only_a_sandbox_that_has_ended_is_deleted(admin):
    sandbox_id = await admin.start()
    refused = await admin.post("/delete", {"sandbox_id": sandbox_id})
    assert (refused["result"]["code"], "is running" in refused["message"]) == (4000, True)
    assert (await admin.status(sandbox_id))["is_alive"]
    await admin.post("/stop", {"sandbox_id": sandbox_id})
    assert (await admin.post("/delete", {"sandbox_id": sandbox_id}))["result"] == f"{sandbox_id} deleted"
    assert (await admin.post("/delete", {"sandbox_id": sandbox_id}))["status"] == "Success"
    assert (await admin.status(sandbox_id))["state"] == "deleted"
    assert (await admin.post("/delete", {"sandbox_id": "nobody-knows-it"}))["status"] == "Success"


async def test_the_id_of_a_sandbox_that_ended_can_be_used_again(admin):
    for _ in range(2):
        await admin.start(sandbox_id="again")
        await admin.post("/stop", {"sandbox_id": "again"})
    history = (await admin.status("again"))["state_history"]
    assert [change["event"] for change in history] == ["start", "started", "stop"] * 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/start_async", {"image": ""}),
        ("/start_async", {"image": "a", "memory": "much"}),
        ("/start_async", {"image": "a", "sandbox_id": "../../etc"}),
        ("/start_async", {"spec": {"files": {"a": 1}}}),
        ("/start_async", {"spec": {"files": {"a": "no base64"}}}),
        ("/stop", {"sandbox_id": "a/b"}),
        ("/execute", {"command": "ls"}),
        ("/execute", [1]),
        ("/sandboxes/batch", {"sandbox_ids": "x"}),
    ],
)
async def test_a_body_that_does_not_validate_is_an_invalid_parameter(admin, path, body):
    envelope = await admin.post(path, body)
    assert envelope["message"] == "invalid parameter"
    assert envelope["result"]["code"] == 4000


@pytest.mark.parametrize(
    "asked",
    [
        {"image_os": "windows"},
        {"use_kata_runtime": True},
        {"accelerator_type": "A100"},
        {"num_gpus": 0.5},
        {"auto_archive_seconds": 3, "auto_delete_seconds": 3},
        {"network": "allow", "allow": ["nonsense"]},
        {"cpus": 4000},
        {"spec": {"id": "../a"}},
        {"spec": {"image": "a\x00"}},
        {"image": None},
        {"num_gpus": 8},
    ],
)
async def test_what_the_service_cannot_give_is_refused_with_a_sentence(admin, asked):
    envelope = await admin.post("/start_async", {"image": "a", **asked})
    assert envelope["result"]["code"] == 4000
    assert envelope["message"].endswith(".")
    assert not any(worker.started for worker in admin.workers.workers.values())


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\x84", b'"\\ud800"', b"[" * 100_000, b'{"image": "a", "lifetime_s": 1e999}']
)
async def test_a_body_that_is_no_json_is_the_callers_fault(admin, body):
    for path in ("/start_async", "/execute"):
        answer = await admin.http.post(ROCK_BASE + path, content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["result"]["code"]) == (200, 4000)
    plain = await admin.http.post(
        f"{WORKERS_BASE}/register", content=body, headers={"Content-Type": "application/json"}
    )
    assert 400 <= plain.status_code < 500


async def test_an_image_is_brought_to_every_worker_that_has_images(serve):
    async with serve(workers=3, **SETTINGS) as admin:
        register = admin.workers[0].register
        admin.workers[0].register = register.model_copy(update={"capabilities": ["isolated"]})
        await admin.workers._register(admin.workers[0])
        admin.workers[1].refuses = Fault(detail="The registry does not answer.")
        assert (await admin.post("/warmup/tasks", {"image": "a"}, **shown("anna")))["result"]["code"] == 4000
        warmed = (await admin.post("/warmup/tasks", {"image": "a"}, **shown("admin")))["result"]["workers"]
        assert {each["worker"]: each["problem"] for each in warmed} == {
            "simulated-1": "The registry does not answer.",
            "simulated-2": None,
        }
        assert [admin.workers[number].prepared for number in range(3)] == [[], [], ["a"]]
        assert admin.service.fleet.choice.images() == {"a": 1}
        admin.workers[2].refuses = admin.workers[1].refuses
        refused = await admin.post("/warmup/tasks", {"image": "b"}, **shown("admin"))
        assert (refused["result"]["code"], "brought to no worker" in refused["message"]) == (5000, True)


async def test_an_image_is_built_by_every_worker_that_can_and_sandboxes_start_where_it_is(serve, until):
    async with serve(workers=3, **SETTINGS) as admin:
        fleet = admin.service.fleet
        for number in (1, 2):
            able = {"capabilities": ["network_none", "images", "builds"]}
            admin.workers[number].register = admin.workers[number].register.model_copy(update=able)
            fleet.drop_worker(fleet.workers[f"simulated-{number}"])  # its next heartbeat registers it again
            admin.workers[number].news.set()
        await until(lambda: len(fleet.workers) == 3)

        async def build(name: str = "admin") -> Any:
            asked = {"dockerfile": "FROM a", "files": {"f": "aGk="}}
            return await admin.http.post(f"{ALE_BASE}/builds", json=asked, headers=shown(name))

        assert "'full'" in (await build("anna")).json()["detail"]
        for known in ("ale-snapshot:somebodys", "a"):
            said = await admin.http.get(f"{ALE_BASE}/builds", params={"image": known}, headers=shown("anna"))
            assert said.json() == {"workers": 0}, "only of what was built"
        admin.workers[1].refuses = Fault(detail="RUN failed", fault="caller")
        answer = await build()
        assert answer.status_code == 200, answer.text
        built = answer.json()["image"]
        held = await admin.http.get(f"{ALE_BASE}/builds", params={"image": built}, headers=shown("anna"))
        assert held.json() == {"workers": 1}
        for _ in range(4):
            record = fleet.live[await admin.start(shown("anna"), spec={"image": built})]
            assert record.worker == "simulated-2"
        admin.workers[2].refuses = Fault(detail="no space")
        failed = await build()  # the Dockerfile's fault, as far as one has tried it
        assert (failed.status_code, failed.json()["detail"], "is_task" in failed.json()) == (422, "RUN failed", True)
        admin.workers[1].refuses = admin.workers[2].refuses
        failed = await build()
        assert (failed.status_code, "no space" in failed.json()["detail"]) == (503, True)
        gone = await admin.http.post(f"{ROCK_BASE}/start_async", json={"spec": {"image": "ale-build:4"}},
                                     headers=shown("admin"))  # fmt: skip
        assert "are on a worker that is not there" in gone.json()["message"]


async def test_lists_are_paged_and_filtered(admin):
    ids = [await admin.start({"X-User-Id": "anna" if number % 2 else "bert"}) for number in range(5)]
    first = (await admin.get("/sandboxes", page=1, page_size=2))["result"]
    last = (await admin.get("/sandboxes", page=3, page_size=2))["result"]
    assert [item["sandbox_id"] for item in first["items"] + last["items"]] == [*ids[:2], ids[4]]
    assert (first["total"], first["has_more"], last["has_more"]) == (5, True, False)
    annas = (await admin.get("/sandboxes", user_id="anna"))["result"]["items"]
    assert [item["sandbox_id"] for item in annas] == [ids[1], ids[3]]
    batch = (await admin.post("/sandboxes/batch", {"sandbox_ids": [ids[0], "unknown"]}))["result"]["statuses"]
    assert [item["sandbox_id"] for item in batch] == [ids[0]]
    assert (await admin.get("/sandboxes", page=0))["result"]["code"] == 4000


async def test_statistics_count_the_requests_of_a_sandbox(admin):
    sandbox_id = await admin.start()
    for _ in range(3):
        await admin.post("/execute", {"sandbox_id": sandbox_id, "command": "true"})
    usage = (await admin.get("/get_sandbox_statistics", sandbox_id=sandbox_id))["result"]
    assert usage["requests"] == 3
    assert usage["memory_bytes"] == 64 << 20
    assert (await admin.get("/is_alive", sandbox_id=sandbox_id))["result"]["is_alive"]
    assert not (await admin.get("/is_alive", sandbox_id="unknown"))["result"]["is_alive"]
    assert (await admin.get("/get_token", account="primary"))["result"] is None


async def test_an_old_sandbox_is_read_from_the_database(serve):
    async with serve(keep_ended=1) as admin:
        ids = [await admin.start() for _ in range(3)]
        for sandbox_id in ids:
            await admin.post("/stop", {"sandbox_id": sandbox_id})
        assert list(admin.service.fleet.ended) == [ids[-1]]
        assert (await admin.status(ids[0]))["state"] == "stopped"
