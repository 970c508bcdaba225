"""Many sandboxes by one request, and what each uses."""

from __future__ import annotations

from ale_rock.schemas import Usage

from .test_access import SETTINGS, shown

SMALL = {"image": "a", "cpus": 0.5, "memory": "64m"}


async def test_a_batch_answers_each_request_in_its_place(admin):
    asked = [
        {**SMALL, "sandbox_id": "one"},
        {**SMALL, "image": ""},
        {**SMALL, "sandbox_id": "one"},
        {**SMALL, "image_os": "windows"},
        {**SMALL, "sandbox_id": "two"},
    ]
    answers = (await admin.post("/start_batch", {"requests": asked}, **{"X-User-Id": "anna"}))["result"]
    assert [each["status"] for each in answers] == ["Success", "Failed", "Success", "Failed", "Success"]
    assert [each["result"].get("sandbox_id") for each in answers] == ["one", None, "one", None, "two"]
    assert answers[1]["message"] == "invalid parameter"
    assert "windows" in answers[3]["message"]
    assert {record.user for record in admin.service.fleet.live.values()} == {"anna"}
    assert sum(worker.started for worker in admin.workers.workers.values()) == 2


async def test_a_batch_starts_hundreds_at_once(admin):
    answers = (await admin.post("/start_batch", {"requests": [SMALL] * 300}))["result"]
    assert len({each["result"]["sandbox_id"] for each in answers}) == 300
    assert admin.service.fleet.counts["running"] == 300


async def test_a_batch_does_not_pass_quotas_nor_the_bound_of_the_queue(serve):
    async with serve(sandboxes_per_user=3) as admin:
        answers = (await admin.post("/start_batch", {"requests": [SMALL] * 5}, **{"X-User-Id": "anna"}))["result"]
        assert [each["status"] for each in answers] == ["Success"] * 3 + ["Failed"] * 2
        assert "may have 3" in answers[-1]["message"]


async def test_batches_that_are_empty_or_too_long_are_refused(admin):
    for body in ({"requests": []}, {"requests": [SMALL] * 1001}, {"requests": ["a"]}, {}):
        assert (await admin.post("/start_batch", body))["result"]["code"] == 4000


async def test_a_batch_counts_as_the_requests_it_stands_for(serve):
    async with serve(**SETTINGS, requests_per_s=0.001, burst=10) as admin:
        answer = await admin.post("/start_batch", {"requests": [SMALL] * 20}, **shown("anna"))
        assert answer["status"] == "Success"
        refused = await admin.get("/sandboxes", shown("anna"))
        assert "come back in" in refused["message"]
        assert (await admin.get("/sandboxes", shown("bert")))["status"] == "Success"


async def test_statistics_say_what_a_sandbox_uses_now(serve):
    async with serve() as admin:
        sandbox_id = await admin.start(cpus=2, memory="1g", disk="2g")
        admin.workers[0].usage[sandbox_id] = Usage(
            memory_bytes=256 << 20, cpu_s=9.0, cpu_cores=1.5, pids=7, disk_bytes=1 << 30, network_in_bytes=3,
            network_out_bytes=4,
        )  # fmt: skip
        use = (await admin.get("/get_sandbox_statistics", sandbox_id=sandbox_id))["result"]
        assert (use["cpu"], use["mem"], use["disk"], use["net"]) == (75.0, 25.0, 50.0, 7)
        assert (use["now"]["pids"], use["now"]["cpu_s"]) == (7, 9.0)
        assert use["requests"] == 0, "to ask is no use of the sandbox"
        await admin.post("/stop", {"sandbox_id": sandbox_id})
        use = (await admin.get("/get_sandbox_statistics", sandbox_id=sandbox_id))["result"]
        assert (use["now"], use["mem"]) == (None, None)


async def test_what_cannot_be_measured_is_null_and_the_message_says_why(admin):
    envelope = await admin.get("/get_sandbox_statistics", sandbox_id=await admin.start())
    assert (envelope["status"], envelope["result"]["now"]) == ("Success", None)
    assert "Measures" in envelope["message"]
