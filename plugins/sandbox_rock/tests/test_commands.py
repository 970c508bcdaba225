"""`ale rock serve` and `ale rock worker` as processes: which one outlives the other, and which callers are admitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from service_process import START_S, Command, Service, serving
from support.sandbox_providers import must_answer

pytestmark = [pytest.mark.bwrap, pytest.mark.slow]
START = "/apis/envs/sandbox/v1/start_async"
SMALL = {"image": "any", "memory": "256m", "cpus": 0.5}


def until(true: Callable[[], bool], what: str) -> None:
    """Wait until something is true."""
    end = time.monotonic() + START_S
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def worker_of(command: Command) -> int:
    """The process of the worker that `ale rock serve` has started."""
    pid = command.process.pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def runs(pid: int) -> bool:
    """Whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """`ale rock serve` with a local worker."""
    must_answer("local")
    command = Command(tmp_path, "serve", ["serve", "--port", "0"])
    yield command
    command.stop()


def test_a_worker_that_dies_is_started_again(command: Command, tmp_path: Path) -> None:
    service = Service(command.wait_for("ROCK service: "), tmp_path)
    service.wait_for_worker()
    lost = service.post(START, SMALL).json()["result"]["sandbox_id"]
    first = worker_of(command)
    Command.kill_process(first)
    until(lambda: lost not in service.sandboxes(), "the lost sandbox is still listed as alive")
    again = service.post(START, {**SMALL, "startup_timeout": START_S}).json()
    assert again["status"] == "Success", again
    assert worker_of(command) != first
    command.stop()
    assert "is started again" in service.logs()


def test_a_killed_service_leaves_no_worker_and_a_stopped_one_neither(command: Command, tmp_path: Path) -> None:
    service = Service(command.wait_for("ROCK service: "), tmp_path)
    service.wait_for_worker()
    worker = worker_of(command)
    command.kill()
    until(lambda: not runs(worker), "the worker of a killed service still runs")
    again = Command(tmp_path, "again", ["serve", "--port", "0"])
    Service(again.wait_for("ROCK service: "), tmp_path).wait_for_worker()
    worker = worker_of(again)
    again.stop()
    assert not runs(worker)


def test_a_provider_that_cannot_start_ends_the_service_with_its_sentence(tmp_path: Path) -> None:
    (tmp_path / "worker.yaml").write_text("url: unix:///no/such/socket\n")
    command = Command(
        tmp_path, "serve", ["serve", "--port", "0", "--worker", "docker", "--worker-settings", "worker.yaml"]
    )
    assert command.process.wait(START_S) == 2
    said = command.log.read_text()
    assert "/no/such/socket" in said
    assert "Traceback" not in said


def test_a_worker_needs_the_token_of_its_role(tmp_path: Path) -> None:
    must_answer("local")
    anna, nodes = "token-of-anna-0123456789", "token-of-nodes-0123456789"
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f"- {{token: {anna}, role: user}}\n- {{token: {nodes}, role: worker}}\n")
    tokens.chmod(0o600)
    shown = {"Authorization": f"Bearer {anna}"}
    with serving(tmp_path, "--token-file", str(tokens), "--worker", "none", headers=shown) as service:
        for name, token in (("wrong", anna), ("right", nodes)):
            options = ["worker", "--admin", service.url, "--name", name, "--token-env", "NODE_TOKEN"]
            worker = Command(tmp_path, name, options, {"NODE_TOKEN": token})
            try:
                if name == "wrong":
                    until(lambda: "403" in service.logs(), "the refusal is not reported")
                    assert service.get("/apis/ale/v1/status").json()["workers"] == []
                else:
                    service.wait_for_worker()
                    assert service.post(START, SMALL).json()["status"] == "Success"
            finally:
                worker.stop()
        assert anna not in service.logs()
        assert nodes not in service.logs()
        assert service.get("/apis/ale/v1/status").status_code == 200
        service.headers = {}
        assert service.get("/apis/ale/v1/status").status_code == 401
        assert service.post("/env/list", {}).status_code == 401
        assert service.post("/apis/v1/envs/gem/make", {"env_id": "a"}).status_code == 401
        assert service.get("/health").json() == {"status": "ok"}
