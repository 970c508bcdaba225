"""What outlives a sandbox: the files of its last stop, archives, and images made of it."""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import OperationalError

from ale_rock.admin import persistence
from ale_rock.admin.watch import Watch

KEPT = {"auto_delete_seconds": 3600}


def snapshots(admin):
    """The snapshots that the workers hold."""
    return [name for worker in admin.workers.workers.values() for name in worker.snapshots]


async def stop(admin, sandbox_id):
    assert (await admin.post("/stop", {"sandbox_id": sandbox_id}))["status"] == "Success"


async def test_a_stopped_sandbox_starts_again_where_its_files_are(admin):
    sandbox_id = await admin.start(**KEPT, network="full", env={"KEY": "secret-value"})
    record = admin.service.fleet.live[sandbox_id]
    first = record.worker
    await stop(admin, sandbox_id)
    [name] = snapshots(admin)
    for number in range(2):
        again = await admin.post("/restart", {"sandbox_id": sandbox_id})
        assert again["result"]["sandbox_id"] == sandbox_id
        assert (await admin.status(sandbox_id))["is_alive"]
        assert record.worker == first
        spec = admin.workers.workers[first].sandboxes[sandbox_id].spec
        assert (spec.from_snapshot, spec.network, spec.env) == (name, "full", {"KEY": "secret-value"})
        await stop(admin, sandbox_id)
        assert snapshots(admin) == [name], f"stop {number} replaces the snapshot"
    assert not admin.service.fleet.live


async def test_no_secret_of_a_kept_sandbox_is_in_its_row(admin):
    sandbox_id = await admin.start(**KEPT, env={"KEY": "secret-value"})
    await stop(admin, sandbox_id)
    row = admin.service.fleet.ended[sandbox_id].row()
    assert "KEY" in row["kept_order"]
    assert "secret-value" not in str(row)


async def test_a_stop_keeps_nothing_unless_that_was_asked_for(admin):
    sandbox_id = await admin.start()
    await stop(admin, sandbox_id)
    assert snapshots(admin) == []
    for path in ("/restart", f"/sandboxes/{sandbox_id}/archive"):
        answer = await admin.post(path, {"sandbox_id": sandbox_id})
        assert answer["result"]["code"] == 4000
        assert "auto_archive_seconds" in answer["message"]


async def test_the_service_can_keep_the_files_of_all(serve):
    async with serve(keep_stopped=True) as admin:
        sandbox_id = await admin.start()
        await stop(admin, sandbox_id)
        assert (await admin.post("/restart", {"sandbox_id": sandbox_id}))["status"] == "Success"


async def test_only_what_has_ended_is_restarted(admin):
    sandbox_id = await admin.start(**KEPT)
    answer = await admin.post("/restart", {"sandbox_id": sandbox_id})
    assert (answer["result"]["code"], "is running" in answer["message"]) == (4000, True)
    await stop(admin, sandbox_id)
    await admin.post("/delete", {"sandbox_id": sandbox_id})
    answer = await admin.post("/restart", {"sandbox_id": sandbox_id})
    assert (answer["result"]["code"], "is deleted" in answer["message"]) == (4000, True)


async def test_a_lost_sandbox_goes_back_to_its_last_stop(admin, until):
    sandbox_id = await admin.start(**KEPT)
    await stop(admin, sandbox_id)
    await admin.post("/restart", {"sandbox_id": sandbox_id})
    record = admin.service.fleet.live[sandbox_id]
    admin.workers.workers[record.worker].end(sandbox_id, "it fell over")
    await until(lambda: sandbox_id not in admin.service.fleet.live)
    assert (await admin.post("/restart", {"sandbox_id": sandbox_id}))["status"] == "Success"
    events = [change["event"] for change in (await admin.status(sandbox_id))["state_history"]]
    assert events == ["start", "started", "stop", "restart", "started", "lost", "restart", "started"]


async def test_the_files_go_with_the_sandbox(admin, until):
    deleted, replaced = await admin.start(**KEPT), await admin.start(**KEPT, sandbox_id="one")
    for sandbox_id in (deleted, replaced):
        await stop(admin, sandbox_id)
    assert len(snapshots(admin)) == 2
    await admin.post("/delete", {"sandbox_id": deleted})
    assert len(snapshots(admin)) == 1
    await admin.start(sandbox_id="one")
    await until(lambda: not snapshots(admin))


async def test_files_of_a_worker_that_was_away_are_removed_when_it_is_back(serve, until):
    async with serve(worker_timeout_s=0.6) as admin:
        sandbox_id = await admin.start(**KEPT)
        await stop(admin, sandbox_id)
        admin.workers[0].silent = True
        await until(lambda: not admin.service.fleet.workers)
        answer = await admin.post("/restart", {"sandbox_id": sandbox_id})
        assert (answer["result"]["code"], "simulated-0" in answer["message"]) == (5000, True)
        await admin.post("/delete", {"sandbox_id": sandbox_id})
        assert len(snapshots(admin)) == 1
        admin.workers[0].silent = False
        await until(lambda: not snapshots(admin))


async def test_the_row_of_what_was_deleted_while_its_worker_was_away_is_forgotten_all_the_same(serve, until):
    async with serve(worker_timeout_s=0.6, reconcile_s=0.1) as admin:
        sandbox_id, store = await admin.start(**KEPT), admin.service.fleet.store
        await stop(admin, sandbox_id)
        admin.workers[0].silent = True
        await until(lambda: not admin.service.fleet.workers)
        await admin.post("/delete", {"sandbox_id": sandbox_id})
        await store.forget((await store.find(sandbox_id)).deleted)
        assert await store.find(sandbox_id) is not None
        await store.forget(2e9)
        assert await store.find(sandbox_id) is None
        admin.service.fleet.ended.clear()
        admin.workers[0].silent = False  # its files belong to nothing now
        await until(lambda: not snapshots(admin))


async def test_an_archived_sandbox_stays_until_it_is_deleted(admin):
    sandbox_id = await admin.start(**KEPT)
    record = admin.service.fleet.live[sandbox_id]
    refused = await admin.post(f"/sandboxes/{sandbox_id}/archive", {})
    assert (refused["result"]["code"], "is running" in refused["message"]) == (4000, True)
    await stop(admin, sandbox_id)
    assert (await admin.post(f"/sandboxes/{sandbox_id}/archive", {}))["status"] == "Success"
    refused = await admin.post(f"/sandboxes/{sandbox_id}/archive", {})
    assert (refused["result"]["code"], "is archived" in refused["message"]) == (4000, True)
    status = await admin.status(sandbox_id)
    assert status["state"] == "archived"
    assert [change["to_state"] for change in status["state_history"]][-3:] == ["stopped", "archiving", "archived"]
    assert status["archive_time"]
    assert record.due() is None
    store = admin.service.fleet.store
    await store.forget(2e9)
    assert (await store.find(sandbox_id)).state == "archived"
    assert (await admin.post("/restart", {"sandbox_id": sandbox_id}))["status"] == "Success"
    assert (await admin.status(sandbox_id))["is_alive"]


async def test_a_sandbox_is_archived_by_itself(admin, until):
    sandbox_id = await admin.start(auto_archive_seconds=1000)
    await stop(admin, sandbox_id)
    status = await admin.status(sandbox_id)
    assert (status["state"], status["auto_delete_time"]) == ("stopped", None)
    assert status["auto_archive_time"] > status["stop_time"]
    record = admin.service.fleet.ended[sandbox_id]
    record.stopped -= 1000
    admin.service.fleet.deadlines.schedule(record)
    await until(lambda: record.state == "archived")


async def test_an_archive_whose_files_are_gone_fails_and_the_sandbox_stays_stopped(admin):
    sandbox_id = await admin.start(**KEPT)
    await stop(admin, sandbox_id)
    for worker in admin.workers.workers.values():
        worker.snapshots.clear()
    answer = await admin.post(f"/sandboxes/{sandbox_id}/archive", {})
    assert answer["result"]["code"] == 5000
    status = await admin.status(sandbox_id)
    assert (status["state"], status["state_history"][-1]["event"]) == ("stopped", "archive_failed")


async def test_stopped_sandboxes_that_are_forgotten_leave_no_files(admin, until):
    sandbox_id = await admin.start(**KEPT)
    await stop(admin, sandbox_id)
    record = admin.service.fleet.ended[sandbox_id]
    record.stopped -= 8 * 86_400
    await admin.service.fleet.store.save(record)
    admin.service.fleet.ended.pop(sandbox_id)
    await Watch(admin.service)._forget(record.created - 86_400)
    assert snapshots(admin) == []


async def test_a_sandbox_is_restarted_by_another_admin_but_not_without_its_secrets(serve):
    async with serve() as admin:
        plain, secret = await admin.start(**KEPT), await admin.start(**KEPT, env={"KEY": "secret-value"})
        for sandbox_id in (plain, secret):
            await stop(admin, sandbox_id)
        held = admin.workers[0].snapshots
    async with serve() as admin:
        admin.workers[0].snapshots |= held
        worker = next(iter(admin.service.fleet.workers.values()))
        admin.service.fleet.choice.set_images(worker, held)
        assert (await admin.post("/restart", {"sandbox_id": plain}))["status"] == "Success"
        answer = await admin.post("/restart", {"sandbox_id": secret})
        assert (answer["result"]["code"], "KEY" in answer["message"]) == (4000, True)


async def test_a_commit_makes_an_image_for_its_user(admin):
    sandbox_id = await admin.start()
    asked = {"sandbox_id": sandbox_id, "image_tag": "team/image:1", "username": "anna", "password": "secret-value"}
    nothing = await admin.get(f"/commit/{sandbox_id}")
    assert nothing["result"]["code"] == 4000
    made = await admin.post("/commit", asked, **{"X-User-Id": "anna"})
    assert (made["result"]["phase"], made["result"]["exit_code"]) == ("SUCCEEDED", 0)
    assert "not pushed" in made["message"]
    assert (await admin.get(f"/commit/{sandbox_id}"))["result"] == made["result"]
    [name] = snapshots(admin)
    [holder] = [worker for worker in admin.workers.workers.values() if worker.snapshots]
    fork = await admin.start({"X-User-Id": "anna"}, image="team/image:1")
    assert holder.sandboxes[fork].spec.from_snapshot == name
    other = await admin.start({"X-User-Id": "bert"}, image="team/image:1")
    specs = [w.sandboxes[other].spec for w in admin.workers.workers.values() if other in w.sandboxes]
    assert (specs[0].from_snapshot, specs[0].image) == (None, "team/image:1")
    again = await admin.post("/commit", asked, **{"X-User-Id": "anna"})
    assert again["result"]["phase"] == "SUCCEEDED"
    assert len(snapshots(admin)) == 1
    assert snapshots(admin) != [name]


async def test_what_asks_for_an_archive_asks_its_worker_for_one_that_can(admin):
    sandbox_id = await admin.start(auto_archive_seconds=5)
    orders = [w.sandboxes[sandbox_id] for w in admin.workers.workers.values() if sandbox_id in w.sandboxes]
    assert orders[0].keeps_files


async def test_a_commit_that_the_database_does_not_take_fails_and_the_next_does_not(admin, monkeypatch):
    sandbox_id, store = await admin.start(), admin.service.fleet.store
    run, asked = store.run, {"sandbox_id": sandbox_id, "image_tag": "image:1"}
    for writes in (0, 1):  # the first write fails; or the second, when the image is made

        async def failing(work, left=[writes]):  # noqa: B006
            left[0] -= 1
            if left[0] < 0:
                raise OperationalError("insert", {}, Exception("no space"))
            return await run(work)

        monkeypatch.setattr(store, "run", failing)
        failed = await admin.post("/commit", asked)
        assert (failed["result"]["code"], "database" in failed["message"]) == (5000, True)
        monkeypatch.setattr(store, "run", run)
        assert snapshots(admin) == []
        status = (await admin.get(f"/commit/{sandbox_id}"))["result"]
        assert (status["phase"], status["error_code"]) == ("FAILED", "DATABASE_FAILED")
    assert (await admin.post("/commit", asked))["result"]["phase"] == "SUCCEEDED"


async def test_what_is_being_archived_is_deleted_afterwards(admin, monkeypatch, until):
    sandbox_id, missing = await admin.start(**KEPT), asyncio.Event()
    await stop(admin, sandbox_id)

    async def slow(*_):
        await missing.wait()

    monkeypatch.setattr(persistence, "_missing", slow)
    archiving = asyncio.create_task(admin.post(f"/sandboxes/{sandbox_id}/archive", {}))
    record = admin.service.fleet.ended[sandbox_id]
    await until(lambda: record.state == "archiving")
    refused = await admin.post("/delete", {"sandbox_id": sandbox_id})
    assert (refused["result"]["code"], "is archiving" in refused["message"]) == (4000, True)
    missing.set()
    assert (await archiving)["status"] == "Success"
    assert (await admin.post("/delete", {"sandbox_id": sandbox_id}))["status"] == "Success"
    assert (record.state, snapshots(admin)) == ("deleted", [])


async def test_snapshots_of_this_service_that_belong_to_nothing_are_removed(serve, until):
    async with serve(reconcile_s=0.1) as admin:
        sandbox_id = await admin.start(**KEPT)
        await stop(admin, sandbox_id)
        await admin.post("/commit", {"sandbox_id": await admin.start(), "image_tag": "a"})
        own, new_name = set(snapshots(admin)), admin.service.kept.new_name
        held = admin.workers[0].snapshots
        held |= {new_name("stray"), "ale-snapshot:" + new_name("stray"), "rock-another-service"}
        await until(lambda: held == own | {"rock-another-service"})
