"""What is done in sandboxes passes through the admin as it is, in both directions."""

from __future__ import annotations

import asyncio
import secrets

import httpx

from ale_rock.admin.upload_form import MOST_BEFORE
from ale_rock.schemas import ALE_BASE, ROCK_BASE


async def test_actions_reach_the_sandbox_and_come_back(admin):
    box = {"sandbox_id": await admin.start()}
    assert (await admin.post("/create_session", {**box, "session_type": "bash", "session": "s"}))["result"] == {
        "output": "",
        "session_type": "bash",
    }
    ran = (await admin.post("/run_in_session", {**box, "action_type": "bash", "session": "s", "command": "ls"}))[
        "result"
    ]
    assert (ran["output"], ran["exit_code"]) == ("ls", 0)
    assert (await admin.post("/execute", {**box, "command": ["a", "b"]}))["result"]["stdout"] == "['a', 'b']"
    assert (await admin.post("/write_file", {**box, "path": "/a", "content": "é"}))["result"]["success"]
    assert (await admin.post("/read_file", {**box, "path": "/a"}))["result"]["content"] == "é"
    assert (await admin.post("/read_file", {**box, "path": "/b"}))["result"]["code"] == 4000
    assert (await admin.post("/close_session", {**box, "session": "s"}))["status"] == "Success"


async def test_a_large_upload_passes_through_wherever_the_fields_stand_in_the_form(admin):
    sandbox_id, content = await admin.start(), secrets.token_bytes(3 << 20)
    fields = {"target_path": "/big", "sandbox_id": sandbox_id}
    answer = await admin.http.post(f"{ROCK_BASE}/upload", data=fields, files={"file": ("big", content)})
    assert answer.json()["result"]["file_name"] == "big"
    files = [("file", ("f", content)), ("target_path", (None, "/late")), ("sandbox_id", (None, sandbox_id))]
    assert (await admin.http.post(f"{ROCK_BASE}/upload", files=files)).json()["status"] == "Success"
    held = {path: data for worker in admin.workers.workers.values() for (_, path), data in worker.files.items()}
    assert held == {"/big": content, "/late": content}


async def test_forms_that_name_no_sandbox_are_refused(admin):
    url = f"{ROCK_BASE}/upload"
    for answer in (
        await admin.http.post(url, files={"file": ("f", b"x")}),
        await admin.http.post(url, data={"sandbox_id": "../x"}, files={"file": ("f", b"x")}),
        late := await admin.http.post(
            url, files=[("file", ("f", bytes(2 * MOST_BEFORE))), ("sandbox_id", (None, "a"))]
        ),
        await admin.http.post(url, content=b"no form"),
        await admin.http.post(url, content=b"broken", headers={"Content-Type": "multipart/form-data; boundary=a"}),
    ):
        assert answer.status_code == 200
        assert answer.json()["result"]["code"] == 4000, answer.text
    assert "send it before the file" in late.json()["message"]


async def test_ales_own_provider_has_routes_without_an_envelope(admin):
    sandbox_id, content = await admin.start(), secrets.token_bytes(2_500_000)
    files = f"{ALE_BASE}/sandboxes/{sandbox_id}/files"
    assert (await admin.http.put(files, params={"path": "/x y"}, content=content)).status_code == 200
    assert (await admin.http.get(files, params={"path": "/x y"})).content == content
    missing = await admin.http.get(files, params={"path": "/none"})
    assert (missing.status_code, missing.json()["kind"]) == (404, "missing")
    done = await admin.http.post(f"{ALE_BASE}/sandboxes/{sandbox_id}/exec", json={"command": "true"})
    assert done.json()["exit_code"] == 0
    assert (
        await admin.http.post(f"{ALE_BASE}/sandboxes/{sandbox_id}/kill_agent_processes", json={})
    ).status_code == 200
    assert (await admin.http.delete(f"{ALE_BASE}/sandboxes/{sandbox_id}")).status_code == 200
    assert (await admin.http.delete(f"{ALE_BASE}/sandboxes/unknown")).status_code == 404
    late = await admin.http.post(f"{ALE_BASE}/sandboxes/{sandbox_id}/exec", json={"command": "true"})
    assert (late.status_code, late.json()["fault"]) == (400, "caller")


async def test_a_whole_spec_reaches_the_worker_and_its_labels_are_listed(admin):
    spec = {"image": "x", "labels": {"run": "1"}, "files": {"a": "aGk="}, "env": {"A": "b"}, "workdir": "/w"}
    sandbox_id = await admin.start(sandbox_id="whole", spec=spec)
    order = next(worker.sandboxes[sandbox_id] for worker in admin.workers.workers.values() if worker.sandboxes)
    assert order.spec.files == {"a": b"hi"}
    assert (order.spec.env, order.spec.workdir, order.spec.id) == ({"A": "b"}, "/w", "whole")
    listed = (await admin.http.get(f"{ALE_BASE}/sandboxes")).json()["sandboxes"]
    assert [(each["id"], each["labels"], each["alive"]) for each in listed] == [("whole", {"run": "1"}, True)]


async def test_a_client_that_hangs_up_ends_its_command(admin, until):
    sandbox_id = await admin.start()
    body = {"sandbox_id": sandbox_id, "session": "s", "command": "sleep 3600"}
    async with httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.post(f"{admin.url}{ROCK_BASE}/run_in_session", json=body, timeout=None))
        await until(lambda: admin.service.fleet.live[sandbox_id].busy)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: sum(worker.cancelled for worker in admin.workers.workers.values()))
    await until(lambda: not admin.service.fleet.live[sandbox_id].busy)


async def test_a_provider_without_images_and_limits_is_not_asked_for_them_by_a_rock_client(serve):
    async with serve() as admin:
        register = admin.workers[0].register
        admin.workers[0].register = register.model_copy(update={"capabilities": ["isolated", "network_none"]})
        await admin.workers._register(admin.workers[0])
        sandbox_id = await admin.start(image="python:3.11", memory="1g")
        spec = admin.workers[0].sandboxes[sandbox_id].spec
        assert (spec.image, spec.resources.memory_mib) == (None, None)
        whole = await admin.post("/start_async", {"spec": {"image": "x", "resources": {"cpus": 1}}})
        assert whole["message"].startswith("No worker of this service has 'images' (starts from container images) and")


async def test_a_start_goes_to_a_worker_that_is_able(serve):
    able = {
        "plain": {"capabilities": ["network_none", "network_full"]},
        "images": {"capabilities": ["network_none", "images", "limits"]},
        "gpu": {"capabilities": ["network_none", "gpu"], "gpus": 1},
        "snapshots": {"capabilities": ["egress_policy"], "protocols": ["Snapshots"]},
    }
    async with serve(workers=len(able)) as admin:
        for worker, offered in zip(admin.workers.workers.values(), able.values(), strict=True):
            worker.register = worker.register.model_copy(update=offered)
            await admin.workers._register(worker)
        for name, asked in (
            ("plain", {"network": "full"}),
            ("images", {}),
            ("gpu", {"spec": {"resources": {"gpus": 1}}}),
            ("snapshots", {"network": "allow", "auto_archive_seconds": 5}),
        ):
            record = admin.service.fleet.live[await admin.start(**asked)]
            assert record.worker == f"simulated-{list(able).index(name)}", name
        for what, asked in (
            ("'network_endpoint' (can let nothing but the model endpoint through)", {"network": "endpoint-only"}),
            ("'gpu' (passes GPUs through) and 'network_full'", {"spec": {"network": "full", "resources": {"gpus": 1}}}),
        ):
            refused = await admin.post("/start_async", {"image": "a", **asked})
            assert (refused["result"]["code"], what in refused["message"]) == (4000, True), refused
