"""An admin that is killed and started again knows its sandboxes; one that is truly lost is reported as lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from rock.actions import Command, CreateBashSessionRequest
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig
from service_process import PATIENT, Service
from service_process import Command as Process
from support.ports import held_port
from support.sandbox_providers import must_answer

pytestmark = [pytest.mark.bwrap, pytest.mark.slow, pytest.mark.filterwarnings("ignore:deprecated")]
SMALL = {"memory": "256m", "cpus": 0.5, "disk": "64m"}


class Parts:
    """An admin and a worker in processes of their own."""

    def __init__(self, folder: Path, port: int, settings: str) -> None:
        (folder / "settings.yaml").write_text(settings)
        self.folder = folder
        self._serve = ["serve", "--port", str(port), "--worker", "none", "--settings", "settings.yaml"]
        self.admin = Process(folder, "admin-1", self._serve)
        self.service = Service(self.admin.wait_for("ROCK service: "), folder)
        self.worker = Process(folder, "worker", ["worker", "--admin", self.service.url])
        self.service.wait_for_worker()

    def restart_admin(self) -> None:
        """Kill the admin and start it again on the same port and database."""
        self.admin.kill()
        self.admin = Process(self.folder, "admin-2", self._serve)
        self.admin.wait_for("ROCK service: ")


@pytest.fixture
def parts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Parts]:
    """A service whose parts can be killed one by one; its settings are the test's parameter."""
    must_answer("local")
    with held_port() as port:
        made = Parts(tmp_path, port, request.param)
        yield made
        made.worker.stop()
        made.admin.stop()


@pytest.mark.parametrize("parts", [PATIENT], indirect=True, ids=["patient"])
async def test_a_killed_admin_finds_its_sandboxes_again(parts: Parts) -> None:
    box = Sandbox(SandboxConfig(base_url=parts.service.url, **SMALL))
    await box.start()
    await box.create_session(CreateBashSessionRequest(session="s"))
    await box.arun("cd /tmp; x=before", session="s")
    await asyncio.to_thread(parts.restart_admin)
    await asyncio.to_thread(parts.service.wait_for_worker)
    assert (await box.get_status()).is_alive
    assert (await box.arun("pwd; echo $x", session="s")).output.split() == ["/tmp", "before"]
    await box.stop()
    assert (await box.get_status(include_all_states=True)).state == "stopped"


@pytest.mark.parametrize("parts", ["worker_timeout_s: 5"], indirect=True, ids=["hasty"])
async def test_a_sandbox_whose_worker_was_killed_is_lost_and_says_so(parts: Parts) -> None:
    box = Sandbox(SandboxConfig(base_url=parts.service.url, **SMALL))
    await box.start()
    parts.worker.kill()
    for _ in range(600):
        status = await box.get_status(include_all_states=True)
        if not status.is_alive:
            break
        await asyncio.sleep(0.1)
    assert status.state == "stopped"
    assert status.state_history[-1].event == "lost"
    with pytest.raises(Exception, match="Failed to execute command"):
        await box.execute(Command(command="true"))
