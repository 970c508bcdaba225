"""A client of ROCK gives up when it hears nothing for as long as its command may take: an answer that takes longer has
begun by then, and its end comes whatever happens."""

from __future__ import annotations

import asyncio

from ale_rock.schemas import ROCK_BASE

GIVES_UP_S = 5.0


async def run(admin, command: str):
    """Start a sandbox, run a command that may take 0.5 s, and return the answer."""
    body = {"sandbox_id": await admin.start(), "session": "s", "command": command, "timeout": 0.5}
    return await admin.http.post(f"{ROCK_BASE}/run_in_session", json=body, timeout=GIVES_UP_S)


async def test_an_answer_that_takes_longer_than_the_client_waits_arrives(admin):
    answer = await run(admin, "sleep 5.5")
    assert (answer.text[0], answer.json()["status"]) == (" ", "Success")


async def test_an_answer_that_has_begun_says_that_the_worker_was_lost(admin, until):
    asking = asyncio.create_task(run(admin, "sleep 3600"))
    await until(lambda: [each for each in admin.service.fleet.live.values() if each.busy])
    await asyncio.sleep(0.3)
    (record,) = admin.service.fleet.live.values()
    await admin.service.fleet.workers[record.worker].close()
    answer = await asking
    assert answer.text[0] == " "
    assert (answer.json()["status"], answer.json()["result"]["code"]) == ("Failed", 5000)
    assert "is lost" in answer.json()["message"]
