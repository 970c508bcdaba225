"""The provider `rock` against a whole service: what the conformance kit (tests/conformance) does not ask."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_process import ALE, PATIENT, Command, Service, serving
from support.ports import held_port
from support.sandbox_providers import must_answer

from ale.errors import ConfigError, SandboxError
from ale.specs.driver import Channel, DriverContext
from ale.specs.sandbox import Resources, SandboxSpec
from ale.specs.sandbox_protocols import SANDBOX_PROTOCOLS, Checkpoints, Resets, Shells, Snapshots, Trees
from ale_rock.client.config import RockConfig
from ale_rock.client.provider import RockProvider
from ale_rock.gem.client import make

pytestmark = [pytest.mark.bwrap, pytest.mark.slow]
SMALL = Resources(memory_mib=256, pids=64, disk_mib=16)
OWNER = """
import asyncio, sys
from ale.specs.driver import Channel, DriverContext
from ale.specs.sandbox import SandboxSpec
from ale_rock.client.provider import RockProvider
from ale_rock.client.config import RockConfig

async def main():
    provider = RockProvider(RockConfig(url=sys.argv[1]), DriverContext())
    async with provider:
        box = await provider.start_sandbox(SandboxSpec())
        print(box.id, await box.snapshot(), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with local sandboxes."""
    must_answer("local")
    with serving(tmp_path_factory.mktemp("service")) as running:
        yield running


def provider_of(service: Service, **settings: Any) -> RockProvider:
    """A provider, not started yet."""
    return RockProvider(RockConfig(url=service.url, **settings), DriverContext(labels={"run": "r1"}))


async def test_it_can_do_what_the_workers_can(service: Service) -> None:
    async with provider_of(service) as provider:
        assert {"isolated", "network_none", "egress_policy"} <= provider.capabilities
        assert not {"images", "gpu", "network_full"} & provider.capabilities
        for protocol in SANDBOX_PROTOCOLS:
            assert issubclass(provider.sandbox_type, protocol) == (protocol is not Checkpoints), protocol
        for spec in (SandboxSpec(image="python:3.11", resources=SMALL), SandboxSpec(network="full")):
            with pytest.raises(ConfigError, match="do not offer"):
                await provider.start_sandbox(spec)


async def test_texts_that_nothing_can_be_sent_are_refused_in_a_sentence(service: Service, tmp_path: Path) -> None:
    nul, half = "a\0b", "a\ud800b"
    async with provider_of(service) as provider:
        for wrong in (
            {"id": nul}, {"workdir": f"/{nul}"}, {"env": {nul: "x"}}, {"env": {"A": nul}}, {"env": {"": "x"}},
            {"env": {"A": half}}, {"labels": {"a": half}}, {"files": {nul: b""}}, {"files": {half: b""}},
            {"workdir": f"/{half}"}, {"from_snapshot": nul}, {"from_snapshot": half},
        ):  # fmt: skip
            with pytest.raises((ConfigError, SandboxError)) as refused:
                await provider.start_sandbox(SandboxSpec(**wrong))
            assert not re.search("invalid parameter|has failed at this request", str(refused.value)), wrong
        for name in (nul, half):
            await provider.remove(name)
            await provider.remove_snapshot(name)
            with pytest.raises(SandboxError, match="not found"):
                await provider.attach(name)
        async with await provider.start_sandbox(SandboxSpec()) as box:
            assert isinstance(box, Shells)
            assert isinstance(box, Trees)
            assert isinstance(box, Snapshots)
            assert isinstance(box, Resets)
            for arguments in ({"cwd": nul}, {"env": {"A": nul}}, {"env": {nul: "x"}}, {"env": {"": "x"}}):
                done = await box.exec("true", **arguments)
                assert (done.exit_code, b"NUL" in done.stderr) == (2, True), arguments
            for call in (
                box.exec("true", user=nul), box.upload({nul: b""}), box.upload({"a": b""}, user=nul),
                box.upload({"a": b""}, user=half), box.download(nul), box.download(""), box.snapshot(nul),
                box.open_shell(cwd=nul), box.open_shell(env={"A": nul}), box.open_shell(env={"A": half}),
                box.upload_tree(tmp_path / nul, "/tmp/tree"), box.upload_tree(tmp_path, nul),
                box.download_tree(nul, tmp_path / "new"), box.download_tree("/tmp", tmp_path / nul),
                box.reset(SandboxSpec(env={"A": nul})),
            ):  # fmt: skip
                with pytest.raises(SandboxError):
                    await call
            await box.upload({f"/tmp/{half}": b"kept"})
            assert await box.download(f"/tmp/{half}") == b"kept", "as in a local sandbox"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["token", "user", "namespace", "cluster"])
def test_a_setting_that_no_header_can_hold_is_refused(name: str) -> None:
    for text in ("a\nb", "a\0b"):
        with pytest.raises(ValueError, match="cannot be printed"):
            RockConfig(**{name: text})


async def test_an_endpoint_of_this_machine_is_out_of_reach_of_a_service_elsewhere() -> None:
    near, far = RockConfig(url="http://127.0.0.1:8080"), RockConfig(url="http://rock.example.org:8080")
    assert "network_endpoint" in RockProvider.provides(near)
    assert "network_endpoint" not in RockProvider.provides(far)
    provider = RockProvider(far, DriverContext())
    provider.capabilities = RockProvider.provides(far)  # type: ignore[misc]
    for endpoint in ("http://127.0.0.1:8600", "unix:///run/endpoint"):
        with pytest.raises(ConfigError, match=f"the model endpoint {endpoint}"):
            provider._check(SandboxSpec(network="full", endpoint=endpoint))
    provider._check(SandboxSpec(network="full", endpoint="http://192.0.2.1:8600"))


async def test_labels_are_listed_without_the_owner(service: Service) -> None:
    async with provider_of(service) as provider:
        box = await provider.start_sandbox(SandboxSpec(labels={"task": "t-1"}))
        (entry,) = [each for each in await provider.list() if each.id == box.id]
        assert dict(entry.labels) == {"run": "r1", "task": "t-1"}
        shown = json.loads(ale_rock("status", "--url", service.url, "--json"))
        assert box.id in {each["id"] for each in shown["sandboxes"]}
        await box.exec("exit 3")
        command = [sys.executable, "-c", ALE, "rock", "logs", box.id, "--follow", "--url", service.url]
        following = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert following.stdout is not None
        assert b"exit 3" in await following.stdout.readuntil(b"exit 3\n")
        log = await asyncio.to_thread(ale_rock, "logs", box.id, "--url", service.url)
        assert ("exit 3" in log, "exit code 3" in log) == (True, True)
    assert box.id not in {each.id for each in await provider_of(service).list()}
    assert (await following.communicate())[0].endswith(b"the sandbox ends: it was stopped\n")
    assert following.returncode == 0
    events = await asyncio.to_thread(ale_rock, "logs", "--url", service.url)
    assert [line.split()[2] for line in events.splitlines() if box.id in line] == ["start", "started", "stop"]
    unknown = await asyncio.to_thread(run_ale_rock, "logs", "unknown", "--url", service.url)
    assert (unknown.returncode, "unknown" in unknown.stderr) == (2, True)


async def test_what_a_killed_run_left_is_removed_by_the_next(service: Service) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, service.url, stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    sandbox_id, snapshot = (await owner.stdout.readline()).decode().split()
    provider = provider_of(service)
    assert sandbox_id in {each.id for each in await provider.list()}
    assert await provider.prune() == []
    assert snapshot in await provider.snapshots()
    owner.kill()
    await owner.wait()
    async with await provider.attach(sandbox_id) as left:  # until then its files can be fetched
        assert (await left.exec("echo on")).stdout == b"on\n"
    assert await provider.prune() == [sandbox_id]
    with pytest.raises(SandboxError, match=sandbox_id):
        await provider.attach(sandbox_id)
    assert sandbox_id not in {each.id for each in await provider.list()}
    assert snapshot not in await provider.snapshots()


async def test_the_id_of_another_run_is_refused_and_its_sandbox_goes_on(service: Service) -> None:
    sandbox_id = f"taken-{os.getpid()}"
    async with provider_of(service) as one, provider_of(service) as other:
        box = await one.start_sandbox(SandboxSpec(id=sandbox_id))
        with pytest.raises(ConfigError, match=sandbox_id):
            await other.start_sandbox(SandboxSpec(id=sandbox_id))
        assert (await box.exec("echo on")).stdout == b"on\n"


class Events(Channel):
    """A run's events, as they come."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def event(self, kind: str, **data: Any) -> None:
        """Keep it."""
        self.queue.put_nowait((kind, data))


async def test_each_refused_connection_is_one_event_of_the_run_also_when_the_admin_was_killed(tmp_path: Path) -> None:
    must_answer("local")
    (tmp_path / "patient.yaml").write_text(PATIENT)
    with held_port() as port:
        await refusals_of(tmp_path, ["serve", "--port", str(port), "--worker", "none", "--settings", "patient.yaml"])


async def refusals_of(tmp_path: Path, serve: list[str]) -> None:
    """What the test above says; `serve` starts an admin."""
    admin = Command(tmp_path, "admin-1", serve)
    service, events = Service(admin.wait_for("ROCK service: "), tmp_path), Events()
    worker = Command(tmp_path, "worker", ["worker", "--admin", service.url])
    try:
        await asyncio.to_thread(service.wait_for_worker)
        provider = RockProvider(RockConfig(url=service.url), DriverContext(labels={"run": "r1"}, channel=events))
        spec = SandboxSpec(network="allow", allow=("example.org:80",), labels={"task": "t"})
        async with provider, await provider.start_sandbox(spec) as box:
            await box.exec("bash -c ': < /dev/tcp/192.0.2.1/81'")
            found = [await events.queue.get()]
            admin.kill()
            admin = Command(tmp_path, "admin-2", serve)
            await asyncio.to_thread(admin.wait_for, "ROCK service: ")
            await box.exec("bash -c ': < /dev/tcp/192.0.2.1/82'")
            found.append(await events.queue.get())
            await box.exec("bash -c ': < /dev/tcp/192.0.2.1/83'")
            while "192.0.2.1:83" not in await box.logs():
                pass
        found.append(events.queue.get_nowait())  # what came last is not lost
        assert events.queue.empty()
        asked = {"sandbox_id": "followed", "spec": {"network": "allow", "allow": ["example.org:80"]}}
        assert service.post("/apis/envs/sandbox/v1/start_async", asked).json()["status"] == "Success"
        path = "/apis/ale/v1/sandboxes/followed"
        with httpx.stream("GET", f"{service.url}{path}/refusals") as followed:
            service.post(f"{path}/exec", {"command": "bash -c ': < /dev/tcp/192.0.2.1/84'"})
            lines = followed.iter_lines()
            assert "192.0.2.1" in next(lines)
            admin.stop()
            assert list(lines) == [], "it is ended, and not cut off after it has held up the admin's end"
    finally:
        worker.stop()
        admin.stop()
    labels = {"run": "r1", "task": "t"}
    assert [kind for kind, _ in found] == ["network_refused"] * 3
    assert [(data["port"], data["host"], data["sandbox"], data["labels"]) for _, data in found] == [
        (port, "192.0.2.1", box.id, labels) for port in (81, 82, 83)
    ]


async def test_a_service_that_does_not_answer_is_a_sentence() -> None:
    with pytest.raises(SandboxError, match=r"The ROCK service at http://127.0.0.1:9 does not answer"):
        async with RockProvider(RockConfig(url="http://127.0.0.1:9"), DriverContext()):
            pass


def test_a_url_that_is_none_is_refused() -> None:
    for url in ("127.0.0.1:8080", "http://", "ftp://host"):
        with pytest.raises(ValueError, match="is no URL of a service"):
            RockConfig(url=url)


async def test_a_service_without_a_worker_says_how_to_start_one(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--worker", "none") as service,
        pytest.raises(SandboxError, match="ale rock worker --admin"),
    ):
        async with provider_of(service):
            pass


async def test_users_with_tokens_see_their_own_sandboxes_alone(tmp_path: Path) -> None:
    must_answer("local")
    tokens = tmp_path / "tokens.yaml"
    anna, bert = "token-of-anna-0123456789", "token-of-bert-0123456789"
    tokens.write_text(f"- {{token: {anna}, role: user, user: anna}}\n- {{token: {bert}, role: user, user: bert}}\n")
    tokens.chmod(0o600)
    with serving(tmp_path, "--token-file", str(tokens), headers={"Authorization": f"Bearer {anna}"}) as service:
        with pytest.raises(ConfigError, match="token"):
            async with provider_of(service):
                pass
        async with provider_of(service, token=anna) as hers, provider_of(service, token=bert) as his:
            box = await hers.start_sandbox(SandboxSpec())
            assert (await box.exec("echo on")).stdout == b"on\n"
            assert box.id in {each.id for each in await hers.list()}
            assert await his.list() == []
            await his.remove(box.id)
            assert (await box.exec("echo on")).stdout == b"on\n"
        with make("ale:bash/train/0", service.url, anna) as env:
            env.reset()
            for token, sentence in ((bert, str(env.sandbox_id)), ("", "needs a token")):
                env._headers["Authorization"] = f"Bearer {token}"
                with pytest.raises(ConfigError, match=sentence):
                    env.step("ls")
            env._headers["Authorization"] = f"Bearer {anna}"
        assert anna not in service.logs()


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens.yaml").write_text("- {token: token-of-anna-0123456789, role: user}\n")
    (tmp_path / "tokens.yaml").chmod(0o644)
    done = run_ale_rock("serve", "--port", "0", "--token-file", str(tmp_path / "tokens.yaml"))
    assert done.returncode == 2
    assert "chmod 600" in done.stderr


def test_a_service_for_others_needs_tokens(tmp_path: Path) -> None:
    done = run_ale_rock("serve", "--host", "0.0.0.0", "--port", "0", "--worker", "none")
    assert done.returncode == 2
    assert "nobody needs a token" in done.stderr


async def test_a_shell_of_the_command_line_keeps_its_state(service: Service) -> None:
    async with provider_of(service) as provider, await provider.start_sandbox(SandboxSpec()) as box:
        lines = "cd /tmp\nx=5\npwd; echo $x\n(exit 3)\nexit\n"
        shell = await asyncio.to_thread(run_ale_rock, "shell", box.id, "--url", service.url, stdin=lines)
        assert (shell.returncode, shell.stdout) == (3, "/tmp\n5\n")
        left = await asyncio.to_thread(run_ale_rock, "shell", box.id, "--url", service.url, stdin="exit 4\n")
        assert left.returncode == 4
    gone = await asyncio.to_thread(run_ale_rock, "shell", box.id, "--url", service.url, stdin="pwd\n")
    assert gone.returncode != 0
    assert box.id in gone.stderr


def test_environments_are_registered_from_the_command_line(service: Service, tmp_path: Path) -> None:
    (tmp_path / "maze.yaml").write_text("settings: {size: 5}\nstart_up: echo on\n")
    at = ("--url", service.url)
    options = ("--image", "maze:1", "--tag", "grid", "--spec", tmp_path / "maze.yaml")
    made = ale_rock("env", "register", "maze", *options, *at)
    assert json.loads(made)["extra_spec"] == {"settings": {"size": 5}, "start_up": "echo on"}
    ale_rock("env", "register", "maze", "--image", "maze:2", *at)
    assert re.search(r"maze +2 +maze:2 +everybody", ale_rock("env", "list", *at))
    assert "maze" not in ale_rock("env", "list", "--tag", "grid", *at)
    assert json.loads(ale_rock("env", "get", "maze@1", *at))["tags"] == ["grid"]
    listed = ale_rock("env", "versions", "maze", *at)
    assert re.findall(r"(maze@\d) +(maze:\d)", listed) == [("maze@2", "maze:2"), ("maze@1", "maze:1")]
    ale_rock("env", "delete", "maze", *at)
    gone = run_ale_rock("env", "get", "maze", *at)
    assert (gone.returncode, "no environment maze" in gone.stderr) == (2, True)


def run_ale_rock(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `ale rock`."""
    command = [sys.executable, "-c", "from ale.cli.main import main; main()", "rock", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def ale_rock(*arguments: str | Path) -> str:
    """Run `ale rock`, which must succeed, and return what it prints."""
    done = run_ale_rock(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
