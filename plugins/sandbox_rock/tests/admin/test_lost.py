"""A sandbox that is dead is never reported as alive, and nothing that lives is forgotten."""

from __future__ import annotations

import asyncio

import pytest

from ale_rock.schemas import WORKERS_BASE, Fault

FAST = {"worker_timeout_s": 0.6, "reconcile_s": 0.3}


async def test_a_silent_worker_is_lost_with_its_sandboxes(serve, until):
    async with serve(workers=2, **FAST) as admin:
        ids = [await admin.start() for _ in range(4)]
        silent, other = admin.workers[0], admin.workers[1]
        gone, there = list(silent.sandboxes), list(other.sandboxes)
        assert gone
        assert there
        silent.silent = True
        await until(lambda: len(admin.service.fleet.workers) == 1)
        for sandbox_id in ids:
            status = await admin.status(sandbox_id)
            assert status["is_alive"] == (sandbox_id in there)
        status = await admin.status(gone[0])
        assert status["state"] == "stopped"
        assert status["state_history"][-1]["event"] == "lost"
        assert "silent for 0.6 s" in status["message"]
        answer = await admin.post("/execute", {"sandbox_id": gone[0], "command": "true"})
        assert answer["result"]["code"] == 5000
        assert "is lost" in answer["message"]


async def test_a_worker_that_comes_back_removes_what_was_reported_lost(serve, until):
    async with serve(workers=1, **FAST) as admin:
        sandbox_id = await admin.start()
        admin.workers[0].silent = True
        await until(lambda: not admin.service.fleet.workers)
        admin.workers[0].silent = False
        await until(lambda: admin.service.fleet.workers and not admin.workers[0].sandboxes)
        assert (await admin.status(sandbox_id))["state"] == "stopped"
        await admin.start()


async def test_a_command_that_waits_for_a_lost_worker_fails_as_the_services_fault(serve, until):
    async with serve(**FAST) as admin:
        sandbox_id = await admin.start()
        asking = asyncio.create_task(admin.post("/execute", {"sandbox_id": sandbox_id, "command": "sleep 3600"}))
        await until(lambda: admin.service.fleet.live[sandbox_id].busy)
        admin.workers[0].silent = True
        assert (await asking)["result"]["code"] == 5000


async def test_a_start_on_a_worker_that_is_lost_goes_to_another(serve, until):
    async with serve(workers=2, worker__start_s=30, **FAST) as admin:
        starting = asyncio.create_task(admin.start(sandbox_id="moved"))
        await until(lambda: admin.service.fleet.live.get("moved") and admin.service.fleet.live["moved"].worker)
        first = admin.service.fleet.live["moved"].worker
        for name, worker in admin.workers.workers.items():
            worker.silent, worker.start_s = name == first, 0
        assert await starting == "moved"
        assert admin.service.fleet.live["moved"].worker != first


async def test_a_start_on_the_only_worker_goes_on_there_when_it_is_back(serve, until):
    async with serve(workers=1, worker__start_s=30, **FAST) as admin:
        worker = admin.workers[0]
        starting = asyncio.create_task(admin.start(sandbox_id="back"))
        await until(lambda: admin.service.fleet.live.get("back") and admin.service.fleet.live["back"].worker)
        worker.silent, worker.start_s = True, 0
        await until(lambda: not admin.service.fleet.workers)
        worker.silent = False
        assert await starting == "back"
        assert list(worker.sandboxes) == ["back"]


async def test_a_start_that_failed_on_a_worker_may_go_there_once_it_has_registered_again(serve, until):
    async with serve(workers=1, worker__start_s=30, **FAST) as admin:
        worker, live = admin.workers[0], admin.service.fleet.live
        starting = asyncio.create_task(admin.start(sandbox_id="back"))
        await until(lambda: live.get("back") and live["back"].worker)
        live["back"].refused_by.add(worker.register.name)  # as after a failure there while another was tried
        worker.silent, worker.start_s = True, 0
        await until(lambda: not admin.service.fleet.workers)
        worker.silent = False
        assert await starting == "back"


async def test_a_start_that_a_worker_fails_at_goes_to_another_and_one_that_it_refuses_does_not(serve, until):
    async with serve(workers=2) as admin:
        admin.workers[0].refuses = Fault(detail="The engine is down.")
        for _ in range(4):
            await admin.start()
        assert not admin.workers[0].sandboxes
        assert len(admin.workers[1].sandboxes) == 4
        for worker in admin.workers.workers.values():
            worker.refuses = Fault(detail="There is no image a.", fault="caller")
        refused = await admin.post("/start_async", {"image": "a", "sandbox_id": "refused"})
        assert (refused["result"]["code"], refused["message"]) == (4000, "There is no image a.")
        assert (await admin.status("refused"))["status"]["docker_run"]["status"] == "failed"
        for worker in admin.workers.workers.values():
            worker.refuses = Fault(detail="The disk is full.")
        failed = await admin.post("/start_async", {"image": "a"})
        assert failed["result"]["code"] == 5000
        assert failed["message"] == "The disk is full. 2 workers were tried."
        await until(lambda: all(len(each.sandboxes) in (0, 4) for each in admin.service.fleet.workers.values()))


async def test_a_sandbox_that_dies_in_a_live_worker_is_lost_at_once(admin, until):
    sandbox_id = await admin.start()
    next(each for each in admin.workers.workers.values() if each.sandboxes).end(sandbox_id, "It ran out of memory.")

    async def lost() -> bool:
        return not (await admin.status(sandbox_id))["is_alive"]

    await until(lost)
    assert (await admin.status(sandbox_id))["message"] == "It ran out of memory."
    assert not any(worker.sandboxes for worker in admin.service.fleet.workers.values())


async def test_a_restarted_worker_has_lost_what_it_does_not_name(admin, until):
    sandbox_id = await admin.start()
    worker = next(each for each in admin.workers.workers.values() if each.sandboxes)
    worker.sandboxes.clear()
    await admin.workers._register(worker)
    status = await admin.status(sandbox_id)
    assert status["state_history"][-1]["event"] == "lost"
    assert "restarted" in status["message"]


async def test_a_worker_that_registers_twice_at_once_is_one_worker(admin):
    sandbox_id = await admin.start()
    worker = next(each for each in admin.workers.workers.values() if each.sandboxes)
    await asyncio.gather(*(admin.workers._register(worker) for _ in range(5)))
    fleet = admin.service.fleet
    assert len(fleet.workers) == len(fleet.by_id) == 3
    assert (await admin.status(sandbox_id))["is_alive"]
    assert sandbox_id in fleet.workers[worker.register.name].sandboxes


async def test_a_second_worker_of_a_name_is_refused_until_the_first_has_ended(serve):
    async with serve(**FAST) as admin:
        sandbox_id = await admin.start()
        twin = admin.workers[0].register.model_dump(mode="json") | {"url": "http://127.0.0.1:9"}
        refused = await admin.http.post(f"{WORKERS_BASE}/register", json=twin)
        assert (refused.status_code, refused.json()["fault"]) == (400, "caller")
        assert "A worker simulated-0 runs already" in refused.json()["detail"]
        assert (await admin.status(sandbox_id))["is_alive"]
        admin.workers[0].silent = True
        assert (await admin.http.post(f"{WORKERS_BASE}/register", json=twin)).status_code == 200
        assert admin.service.fleet.workers["simulated-0"].url == twin["url"]


@pytest.mark.parametrize("url", ["http://h\x90st:1", "http://[", "http://h:99999", "file:///etc", "http://h/?q"])
async def test_a_worker_whose_url_is_none_is_refused(admin, url):
    register = admin.workers[0].register.model_dump(mode="json") | {"name": "odd", "url": url}
    refused = await admin.http.post(f"{WORKERS_BASE}/register", json=register)
    assert refused.status_code in (400, 422)
    assert "odd" not in admin.service.fleet.workers


async def test_what_a_worker_holds_and_nobody_knows_is_removed(serve, until):
    async with serve(**FAST) as admin:
        known = await admin.start()
        admin.workers[0].sandboxes["stray"] = None
        await until(lambda: "stray" not in admin.workers[0].sandboxes)
        assert known in admin.workers[0].sandboxes
        del admin.workers[0].sandboxes[known]

        async def lost() -> bool:
            return (await admin.status(known))["state"] == "stopped"

        await until(lost)


async def test_a_removal_that_fails_is_tried_again_and_its_room_stays_taken(serve, until):
    async with serve(worker__cpus=1, cpu_overcommit=1, worker__token="the worker's own") as admin:
        sandbox_id = await admin.start(cpus=1)
        admin.workers._token = "another"
        assert (await admin.post("/stop", {"sandbox_id": sandbox_id}))["status"] == "Success"
        assert (await admin.status(sandbox_id))["state"] == "stopped"
        worker = admin.service.fleet.workers["simulated-0"]
        assert worker.sandboxes
        assert admin.workers[0].sandboxes
        again = asyncio.create_task(admin.start(cpus=1, sandbox_id=sandbox_id))
        await until(lambda: len(admin.service.queue) == 1)
        admin.workers._token = "the worker's own"
        assert await again == sandbox_id
        assert admin.workers[0].removed == 1
