"""What happens to sandboxes by itself."""

from __future__ import annotations

import asyncio

from ale_rock.admin.deadlines import Deadlines
from ale_rock.admin.record import Need, Record


async def test_an_idle_sandbox_is_stopped_but_not_while_a_command_runs(admin, until):
    idle, busy = await admin.start(auto_clear_time_minutes=5), await admin.start(auto_clear_time_minutes=5)
    live = admin.service.fleet.live
    command = asyncio.create_task(admin.post("/execute", {"sandbox_id": busy, "command": "sleep 3600"}))
    await until(lambda: live[busy].busy)
    for record in list(live.values()):
        record.used -= 301
        admin.service.fleet.deadlines.schedule(record)
    await until(lambda: idle not in live)
    status = await admin.status(idle)
    assert (status["state_history"][-1]["event"], status["message"]) == ("idle", "It had no request for 300 s.")
    assert (await admin.status(busy))["is_alive"]
    command.cancel()


async def test_a_request_keeps_a_sandbox(admin):
    sandbox_id = await admin.start(auto_clear_time_minutes=5)
    record = admin.service.fleet.live[sandbox_id]
    record.used -= 290
    before = record.due()
    await admin.post("/execute", {"sandbox_id": sandbox_id, "command": "true"})
    assert record.due() > before + 280


async def test_a_sandbox_does_not_outlive_its_lifetime_nor_that_of_the_service(serve, until):
    async with serve(lifetime_s=3600, auto_clear_minutes=0) as admin:
        short, long = await admin.start(lifetime_s=60), await admin.start(lifetime_s=10**6)
        live = admin.service.fleet.live
        assert (live[short].lifetime_s, live[long].lifetime_s, live[long].idle_s) == (60, 3600, None)
        live[short].started -= 61
        admin.service.fleet.deadlines.schedule(live[short])
        await until(lambda: short not in live)
        assert (await admin.status(short))["state_history"][-1]["event"] == "lifetime"
        assert (await admin.status(long))["is_alive"]


async def test_a_stopped_sandbox_is_deleted_when_its_time_has_come(admin, until):
    sandbox_id = await admin.start(auto_delete_seconds=100)
    await admin.post("/stop", {"sandbox_id": sandbox_id})
    assert (await admin.status(sandbox_id))["auto_delete_time"] is not None
    record = admin.service.fleet.ended[sandbox_id]
    record.stopped -= 101
    admin.service.fleet.deadlines.schedule(record)

    async def deleted() -> bool:
        return (await admin.status(sandbox_id))["state"] == "deleted"

    await until(deleted)


def test_deadlines_keep_nothing_of_what_has_ended():
    deadlines = Deadlines()
    records = [Record(str(number), "f", Need(1, 1, 1), idle_s=60.0, state="running") for number in range(1000)]
    for record in records:
        deadlines.schedule(record)
    assert deadlines.take_due(records[0].used) == []
    for record in records:
        record.state = "deleted"
        deadlines.schedule(record)
    assert deadlines._buckets == {}
    assert deadlines.take_due(records[0].used + 1000) == []
