"""Which worker gets a sandbox."""

from __future__ import annotations

import pytest

from ale_rock.admin.record import Need
from ale_rock.admin.settings import Settings
from ale_rock.admin.worker_choice import WorkerChoice
from ale_rock.admin.workers import Worker
from ale_rock.schemas import Register

GIB = 1 << 30
NEED = Need(1, GIB, GIB)


def worker(name: str, cpus: float = 8, images: tuple[str, ...] = (), **settings: float) -> Worker:
    """A worker that promises what it has."""
    register = Register(
        name=name, url="http://127.0.0.1", provider="p", cpus=cpus, memory_bytes=64 * GIB, disk_bytes=640 * GIB,
        images=list(images),
    )  # fmt: skip
    return Worker(register, Settings(cpu_overcommit=1, memory_overcommit=1, disk_overcommit=1, **settings))


def choice_of(*workers: Worker) -> WorkerChoice:
    """A choice between workers."""
    choice = WorkerChoice()
    for each in workers:
        choice.add(each)
    return choice


@pytest.mark.parametrize("count", [3, 200])
def test_sandboxes_are_spread(count):
    workers = [worker(f"w{number}") for number in range(count)]
    choice = choice_of(*workers)
    for number in range(count * 4):
        found = choice.choose(NEED, None)
        assert found is not None
        found.take(str(number), NEED)
    assert max(len(each.sandboxes) for each in workers) <= (4 if count == 3 else 7)


def test_every_place_is_found_however_many_workers_are_full():
    workers = [worker(f"w{number}", cpus=1) for number in range(300)]
    choice = choice_of(*workers)
    for number in range(300):
        found = choice.choose(NEED, None)
        assert found is not None
        found.take(str(number), NEED)
    assert choice.choose(NEED, None) is None
    workers[7].give_back(next(iter(workers[7].sandboxes)))
    assert choice.choose(NEED, None) is workers[7]


def test_a_worker_with_the_image_goes_first_until_it_is_full_or_starts_too_many():
    has, empty = worker("has", images=("i",), starts_per_worker=2), worker("empty")
    choice = choice_of(has, empty)
    has.take("a", NEED)
    assert choice.choose(NEED, "i") is has
    assert choice.choose(NEED, "other") is empty
    has.starting = 2
    assert choice.choose(NEED, "i") is empty
    has.starting = 0
    has.take("b", Need(7, 0, 0))
    assert choice.choose(NEED, "i") is empty


def test_images_come_and_go():
    first, second = worker("first", images=("i",)), worker("second")
    choice = choice_of(first, second)
    first.take("a", NEED)
    choice.set_images(first, set())
    assert choice.choose(NEED, "i") is second
    second.take("b", Need(2, 0, 0))
    choice.set_images(second, {"i"})
    assert choice.choose(NEED, "i") is second
    choice.discard(second)
    assert choice.choose(NEED, "i") is first


def test_a_worker_whose_memory_is_nearly_used_gets_nothing():
    only = worker("only", memory_full=0.5)
    choice = choice_of(only)
    only.memory_used = 33 * GIB
    assert choice.choose(NEED, None) is None
    only.memory_used = 31 * GIB
    assert choice.choose(NEED, None) is only


def test_a_need_that_no_worker_could_ever_meet_is_known():
    choice = choice_of(worker("small", cpus=2))
    assert choice.could_ever(Need(2, GIB, GIB))
    assert not choice.could_ever(Need(3, GIB, GIB))
    assert not choice.could_ever(Need(1, GIB, GIB, gpus=1))
