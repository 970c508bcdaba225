"""Which sandboxes get a worker, in which order, and the errors of those that get none."""

from __future__ import annotations

import asyncio
import time

from ale_rock.admin.queue import MOST_SHAPES, Queue
from ale_rock.admin.record import Need, Record
from ale_rock.admin.reservations import Reservations
from ale_rock.schemas import ALE_BASE

from .test_worker_choice import worker

GIB = 1 << 30


def waiting(name: str, namespace: str = "", priority: int = 0, cpus: float = 1.0) -> Record:
    """A record that waits."""
    return Record(name, "f", Need(cpus, 0, 0), namespace=namespace, priority=priority)


def order_of(queue: Queue, places: int = 1000) -> list[str]:
    """Return the sandboxes that get a place, in order."""
    placed: list[str] = []

    def place(record: Record) -> bool:
        if len(placed) == places:
            return False
        placed.append(record.id)
        return True

    queue.dispatch(place)
    return placed


def test_a_higher_priority_goes_first():
    queue = Queue({})
    for name, priority in (("low", -1), ("first", 0), ("high", 5), ("second", 0)):
        queue.push(waiting(name, priority=priority))
    assert order_of(queue) == ["high", "first", "second", "low"]
    assert len(queue) == 0


def test_namespaces_share_fairly_however_many_one_of_them_asks_for():
    queue = Queue({})
    for number in range(100):
        queue.push(waiting(f"many-{number}", "many"))
    for number in range(3):
        queue.push(waiting(f"few-{number}", "few"))
    placed = order_of(queue, 6)
    assert sum(name.startswith("few") for name in placed) == 3


def test_a_namespace_of_twice_the_weight_gets_twice_as_much():
    queue = Queue({"big": 2.0})
    for number in range(60):
        queue.push(waiting(f"big-{number}", "big"))
        queue.push(waiting(f"small-{number}", "small"))
    placed = order_of(queue, 30)
    assert sum(name.startswith("big") for name in placed) == 20


def test_a_namespace_pays_for_the_size_of_what_it_starts():
    queue = Queue({})
    for number in range(40):
        queue.push(waiting(f"large-{number}", "large", cpus=4))
        queue.push(waiting(f"small-{number}", "small", cpus=1))
    placed = order_of(queue, 20)
    assert sum(name.startswith("small") for name in placed) == 16


def test_one_without_room_is_passed_by_others_of_its_line_and_by_all_lines():
    queue = Queue({})
    large, same, small = (waiting(name, cpus=cpus) for name, cpus in (("large", 100), ("same", 100), ("small", 1)))
    other, low = waiting("other", "b", cpus=100), waiting("low", "b", priority=-1)
    assert [queue.push(record) for record in (large, same, small, other, low)] == [True, False, True, True, True]
    tried: list[str] = []
    stuck = queue.dispatch(lambda record: tried.append(record.id) or record.need.cpus == 1)
    assert tried == ["large", "small", "other", "low"], "what asks for the same is not tried again"
    assert stuck == [large, other]
    assert len(queue) == 3


def test_a_line_of_many_shapes_is_bounded_and_keeps_everyone():
    queue = Queue({})
    records = [waiting(str(number), cpus=number + 1) for number in range(2 * MOST_SHAPES)]
    for record in records:
        queue.push(record)
    tried: list[str] = []
    queue.dispatch(lambda record: bool(tried.append(record.id)))
    assert len(tried) == MOST_SHAPES + 1
    assert sorted(order_of(queue)) == sorted(record.id for record in records)


def test_a_worker_is_kept_free_for_one_that_waits_too_long_and_for_nobody_else():
    workers = {name: worker(name, cpus) for name, cpus in (("small", 2), ("large", 8), ("other", 8))}
    held = Reservations(workers, hold_s=30)
    large, small, urgent = waiting("large", cpus=8), waiting("small"), waiting("urgent", priority=1)
    everyone = [large, small, urgent]
    held.renew([large, small], everyone)
    assert held.closed_to(small) == set(), "nobody has waited for long"
    large.asked -= 60
    held.renew([small, large], everyone)
    assert held.closed_to(small) == set(), "the one further ahead could use that worker"
    workers["other"].take("a", Need(1, 0, 0))
    held.renew([large, small], everyone)
    assert held.closed_to(small) == {"large"}
    assert held.closed_to(large) == held.closed_to(urgent) == set()
    small.asked -= 60
    held.renew([large, small], everyone)
    assert held.closed_to(large) == set(), "of three workers one is kept free"
    held.renew([small], [small])
    assert held.closed_to(waiting("new")) != set()
    held.drop(small)
    huge = waiting("huge", cpus=100)
    huge.asked -= 60
    held.renew([huge], [huge])
    assert held.closed_to(small) == set(), "no worker could ever fit it"


def test_one_that_leaves_the_queue_is_not_placed():
    queue = Queue({})
    records = [waiting(str(number)) for number in range(4)]
    for record in records:
        queue.push(record)
    assert queue.remove(records[1])
    assert not queue.remove(records[1])
    assert order_of(queue, 2) == ["0", "2"]
    assert queue.place_of(records[3]) == 1
    assert order_of(queue) == ["3"]


async def test_a_user_gets_no_more_than_the_quota(serve):
    async with serve(sandboxes_per_user=2, user_quotas={"bert": 1}) as admin:
        anna, bert = {"X-User-Id": "anna"}, {"X-User-Id": "bert"}
        first = await admin.start(anna)
        await admin.start(anna)
        await admin.start(bert)
        for user in (anna, bert):
            refused = await admin.post("/start_async", {"image": "a"}, **user)
            assert refused["result"]["code"] == 4000
            assert "may have" in refused["message"]
        await admin.post("/stop", {"sandbox_id": first})
        await admin.start(anna)


async def test_what_has_no_room_waits_and_starts_when_another_ends(serve, until):
    async with serve(worker__cpus=1, cpu_overcommit=1) as admin:
        first = await admin.start(cpus=1)
        second = asyncio.create_task(admin.start(cpus=1, sandbox_id="second"))
        await until(lambda: len(admin.service.queue) == 1)
        status = await admin.status("second")
        assert (status["state"], status["is_alive"]) == ("pending", False)
        assert status["status"]["image_pull"] == {"status": "waiting", "message": "It waits in the queue."}
        await admin.post("/stop", {"sandbox_id": first})
        assert await second == "second"


async def test_a_worker_whose_disk_is_full_gets_nothing_until_there_is_room_again(serve, until):
    async with serve(worker_timeout_s=0.6, disk_free_bytes=100 << 20) as admin:
        simulated, worker = admin.workers[0], next(iter(admin.service.fleet.workers.values()))
        runs = await admin.start()
        simulated.disk_free = (100 << 20) - 1
        await until(lambda: worker.disk_is_full)
        waits = asyncio.create_task(admin.start())
        await until(lambda: len(admin.service.queue) == 1)
        simulated.disk_free = 105 << 20  # too near to the least
        await until(lambda: worker.disk_free == 105 << 20)
        assert len(admin.service.queue) == 1
        assert (await admin.status(runs))["is_alive"]
        simulated.disk_free = 200 << 20
        await waits
        events = (await admin.http.get(f"{ALE_BASE}/events")).json()["events"]
        assert [each["event"] for each in events if "disk" in each["event"]] == ["disk full", "disk no longer full"]
        assert "disk_free_bytes" in next(each["reason"] for each in events if each["event"] == "disk full")


async def test_a_large_one_holds_up_nobody_and_is_not_passed_for_ever(serve, until):
    async with serve(workers=2, worker__cpus=2, cpu_overcommit=1) as admin:
        small = [await admin.start(cpus=1) for _ in range(4)]
        large = asyncio.create_task(admin.start(cpus=2, sandbox_id="large"))
        await until(lambda: len(admin.service.queue) == 1)
        await admin.post("/stop", {"sandbox_id": small.pop(0)})
        small.append(await admin.start(cpus=1))
        assert not large.done(), "there was no room for it"
        admin.service.fleet.live["large"].asked -= 60
        await until(lambda: admin.service._reservations.closed_to(waiting("another")))
        others = []
        while small and not large.done():  # where one ends, another is ready to take its place
            others.append(asyncio.create_task(admin.start(cpus=1)))
            await admin.post("/stop", {"sandbox_id": small.pop(0)})
            await asyncio.sleep(0.05)
        assert await large == "large"
        await admin.post("/stop", {"sandbox_id": "large"})
        await asyncio.gather(*others)


async def test_a_full_queue_refuses_with_a_sentence_and_a_late_start_says_its_place(serve, until):
    async with serve(worker__cpus=1, cpu_overcommit=1, queue_limit=1) as admin:
        await admin.start(cpus=1)
        late = asyncio.create_task(admin.post("/start_async", {"image": "a", "cpus": 1}))
        await until(lambda: len(admin.service.queue) == 1)
        refused = await admin.post("/start_async", {"image": "a", "cpus": 1})
        assert refused["result"]["code"] == 5000
        assert "queue is full" in refused["message"]
        (record,) = admin.service.queue.waiting()
        record.start_by = time.time()
        admin.service.fleet.deadlines.schedule(record)
        answer = await late
        assert answer["result"]["code"] == 5000
        assert "at place 1 of the 1" in answer["message"]
        assert len(admin.service.queue) == 0


async def test_a_start_that_takes_long_is_answered_as_pending(serve, until):
    async with serve(answer_within_s=0.05) as admin:
        admin.workers[0].gate = gate = asyncio.Event()
        sandbox_id = await admin.start()
        assert (await admin.get("/get_status", sandbox_id=sandbox_id))["result"]["state"] == "pending"
        gate.set()

        async def alive() -> bool:
            return (await admin.status(sandbox_id))["is_alive"]

        await until(alive)


async def test_a_service_without_workers_says_so(serve):
    async with serve(workers=0) as admin:
        answer = await admin.post("/start_async", {"image": "a", "startup_timeout": 0.2})
        assert answer["result"]["code"] == 5000
        assert "there is no worker" in answer["message"]


async def test_no_more_start_at_once_than_the_cap(serve, until):
    async with serve(starts_per_worker=2, worker__start_s=0.2) as admin:
        starts = [asyncio.create_task(admin.start()) for _ in range(7)]
        most = 0
        while not all(start.done() for start in starts):
            most = max(most, *(worker.starting for worker in admin.service.fleet.workers.values()))
            await asyncio.sleep(0.01)
        assert most == 2
        assert len(set(await asyncio.gather(*starts))) == 7


async def test_one_that_is_stopped_while_it_waits_or_starts_leaves_nothing_behind(serve, until):
    async with serve(starts_per_worker=1) as admin:
        admin.workers[0].gate = gate = asyncio.Event()
        starts = [asyncio.create_task(admin.post("/start_async", {"image": "a", "sandbox_id": f"s{n}"})) for n in "01"]
        await until(lambda: len(admin.service.fleet.live) == 2)
        for name in ("s0", "s1"):
            refused = await admin.post("/delete", {"sandbox_id": name})
            assert (refused["result"]["code"], "is pending" in refused["message"]) == (4000, True)
            assert (await admin.post("/stop", {"sandbox_id": name}))["status"] == "Success"
        assert [(await start)["result"]["code"] for start in starts] == [5000, 5000]
        gate.set()
        worker = next(iter(admin.service.fleet.workers.values()))
        await until(lambda: not worker.sandboxes and not worker.starting)
        assert not admin.workers[0].sandboxes
