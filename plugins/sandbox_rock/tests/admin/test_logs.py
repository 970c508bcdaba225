"""Logs of sandboxes: from the worker while they run, from the database afterwards, for callers that may see them."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from ale_rock.admin.store import Store
from ale_rock.schemas import ROCK_BASE

from .test_access import SETTINGS, shown

COMMANDS = """\
2026-11-26T09:00:00.000Z exec 3: export KEY=s3cret
2026-11-26T09:00:00.000Z (process 7) exec 4 as tests: echo s3cret: x
2026-11-26T09:00:00.000Z exec 5 in shell 2: s3cret
2026-11-26T09:00:00.100Z exec 3 ended after 0.100 s: exit code 0
"""
KEPT = """\
2026-11-26T09:00:00.000Z exec 3: (the command is not kept)
2026-11-26T09:00:00.000Z (process 7) exec 4 as tests: (the command is not kept)
2026-11-26T09:00:00.000Z exec 5 in shell 2: (the command is not kept)
2026-11-26T09:00:00.100Z exec 3 ended after 0.100 s: exit code 0
"""
"""What is written down of them."""


def path(sandbox_id: str) -> str:
    """Where the log of a sandbox is."""
    return f"{ROCK_BASE}/sandboxes/{sandbox_id}/logs"


async def test_the_log_of_a_running_sandbox_comes_from_its_worker(serve):
    async with serve() as admin:
        sandbox_id = await admin.start()
        used = admin.service.fleet.live[sandbox_id].used
        admin.workers[0].logs[sandbox_id] = "one: é\ntwo\n"
        answer = await admin.http.get(path(sandbox_id))
        assert (answer.status_code, answer.text) == (200, "one: é\ntwo\n")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert admin.service.fleet.live[sandbox_id].used == used, "to read a log is no use of the sandbox"
        assert admin.service.fleet.live[sandbox_id].requests == 0


async def test_the_log_of_a_sandbox_outlives_it_and_the_admin(serve, until):
    async with serve() as admin:
        ids = {name: await admin.start(sandbox_id=name) for name in ("stopped", "died", "silent")}
        for name in ("stopped", "died"):
            admin.workers[0].logs[ids[name]] = f"this is the log of {name}\n{COMMANDS}"
        await admin.post("/stop", {"sandbox_id": "stopped"})
        await admin.post("/stop", {"sandbox_id": "silent"})
        admin.workers[0].end("died", "it had enough")
        await until(lambda: "died" in admin.service.fleet.ended)
        admin.workers[0].logs.clear()
        for name in ("stopped", "died"):
            assert (await admin.http.get(path(name))).text == f"this is the log of {name}\n{KEPT}"
            assert (await admin.http.get(path(name), params={"follow": True})).text.startswith("this is the log")
    async with serve() as admin:
        assert (await admin.http.get(path("died"))).text == f"this is the log of died\n{KEPT}"
        assert (await admin.http.get(path("silent"))).text == ""
        answer = await admin.http.get(path("unknown"))
        assert (answer.status_code, answer.json()["fault"]) == (404, "caller")


async def test_a_followed_log_gives_each_line_as_it_is_made_and_ends_with_the_sandbox(serve):
    async with serve() as admin:
        sandbox_id = await admin.start()
        admin.workers[0].logs[sandbox_id] = "first\n"
        async with admin.http.stream("GET", path(sandbox_id), params={"follow": True}) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "first"
            admin.workers[0].logs[sandbox_id] += "second\n"
            assert await anext(lines) == "second"
            await admin.post("/stop", {"sandbox_id": sandbox_id})
            assert [line async for line in lines] == []


async def test_a_followed_log_says_so_when_the_worker_is_lost(serve):
    async with serve(worker_timeout_s=1.0) as admin:
        sandbox_id = await admin.start()
        admin.workers[0].logs[sandbox_id] = "first\n"
        async with admin.http.stream("GET", path(sandbox_id), params={"follow": True}) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "first"
            admin.workers[0].silent = True
            (last,) = [line async for line in lines]
        assert last.startswith("The log breaks off here: The worker simulated-0 is lost")


async def test_to_follow_a_pending_sandbox_waits_for_its_start(serve, until):
    async with serve(worker__start_s=0.3) as admin:
        starting = asyncio.create_task(admin.start(sandbox_id="slow"))
        await until(lambda: "slow" in admin.service.fleet.live)
        assert (await admin.http.get(path("slow"))).text == ""
        admin.workers[0].logs["slow"] = "it runs\n"
        async with admin.http.stream("GET", path("slow"), params={"follow": True}) as answer:
            assert await anext(answer.aiter_lines()) == "it runs"
        await starting


@pytest.mark.parametrize("follow", [False, True])
async def test_the_log_of_a_sandbox_that_is_being_stopped_is_waited_for(serve, until, monkeypatch, follow):
    async with serve() as admin:
        sandbox_id = await admin.start()
        admin.workers[0].logs[sandbox_id] = "it ran\n"
        (worker,) = admin.service.fleet.workers.values()
        delete, gate = worker.delete, asyncio.Event()

        async def delete_late(sandbox_id: str) -> str:
            await gate.wait()
            return await delete(sandbox_id)

        monkeypatch.setattr(worker, "delete", delete_late)
        stopping = asyncio.create_task(admin.post("/stop", {"sandbox_id": sandbox_id}))
        await until(lambda: sandbox_id in admin.service.fleet.ended)
        asking = asyncio.create_task(admin.http.get(path(sandbox_id), params={"follow": follow}))
        await asyncio.sleep(0.1)
        gate.set()
        assert (await asking).text == "it ran\n"
        assert (await stopping)["status"] == "Success"


async def test_who_hangs_up_follows_no_more(serve, until):
    async with serve() as admin:
        sandbox_id = await admin.start()
        admin.workers[0].logs[sandbox_id] = "first\n"
        async with httpx.AsyncClient(base_url=admin.url) as client:
            asked = client.build_request("GET", path(sandbox_id), params={"follow": True})
            answer = await client.send(asked, stream=True)
            await anext(answer.aiter_lines())
        worker = admin.service.fleet.workers["simulated-0"]
        await until(lambda: worker._session is not None and not worker._session.connector._acquired)


async def test_only_the_end_of_a_log_is_kept(serve):
    async with serve(log_limit_bytes=20) as admin:
        sandbox_id = await admin.start()
        admin.workers[0].logs[sandbox_id] = "".join(f"line {number}\n" for number in range(100))
        await admin.post("/stop", {"sandbox_id": sandbox_id})
        assert (await admin.http.get(path(sandbox_id))).text == "line 98\nline 99\n"
    async with serve(log_limit_bytes=0) as admin:
        sandbox_id = await admin.start()
        admin.workers[0].logs[sandbox_id] = "a line\n"
        await admin.post("/stop", {"sandbox_id": sandbox_id})
        assert (await admin.http.get(path(sandbox_id))).text == ""


async def test_logs_are_forgotten_with_their_sandboxes(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/rock.sqlite")
    await store.start()
    store.save_log("a", "one\n")
    assert await store.log("a") == "one\n"
    await store._soon()
    assert await store.log("a") == "one\n"
    await store.forget(0)
    assert await store.log("a") == "one\n"
    await store.forget(1e12)
    assert await store.log("a") == ""
    await store.close()


async def test_nobody_reads_anothers_log(serve):
    async with serve(**SETTINGS) as admin:
        await admin.start(shown("anna"), sandbox_id="annas")
        admin.workers[0].logs["annas"] = "secret\n"
        assert (await admin.http.get(path("annas"), headers=shown("anna"))).text == "secret\n"
        for headers, status in ((shown("bert"), 404), (shown("worker"), 403), ({}, 401)):
            answer = await admin.http.get(path("annas"), headers=headers)
            assert (answer.status_code, "secret" in answer.text) == (status, False)
        await admin.post("/stop", {"sandbox_id": "annas"}, **shown("anna"))
        assert (await admin.http.get(path("annas"), headers=shown("bert"))).status_code == 404
        assert (await admin.http.get(path("annas"), headers=shown("anna"))).text == "secret\n"
