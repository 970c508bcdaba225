"""These tests check that a provider really has the capabilities and protocols that it and its sandboxes declare."""

from __future__ import annotations

import os
import socket

import pytest

from ale.specs.sandbox import AGENT, TESTS, Resources
from ale.specs.sandbox_protocols import SANDBOX_PROTOCOLS, KeepsSnapshots, Snapshots
from ale_testing.async_tests import async_test
from ale_testing.plugin_under_test import Subject
from ale_testing.sandbox_setup import (
    addresses_of_this_host,
    needs,
    read_own_command_line,
    started,
    work_folder,
    write_secret,
)


@async_test
async def test_the_class_of_its_sandboxes_shows_what_they_can_do(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        for protocol in SANDBOX_PROTOCOLS:
            assert isinstance(box, protocol) == issubclass(provider.sandbox_type, protocol), (
                f"sandbox_type must have what its sandboxes have: see {protocol.__name__}"
            )
        if isinstance(box, Snapshots):
            assert isinstance(provider, KeepsSnapshots), "who makes snapshots must be able to list and remove them"


@needs("network_none")
@async_test
async def test_without_network_the_host_cannot_be_reached(subject: Subject) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        async with started(subject) as (provider, box):
            if "network_none" not in provider.capabilities:
                return  # narrowed by start(): this machine does not give it, and the provider says so
            if (await box.exec("command -v bash || command -v nc")).exit_code != 0:
                pytest.skip("the sandbox has neither bash nor nc, so nothing in it could reach the network anyway")
            for host in ("127.0.0.1", *addresses_of_this_host()):
                await box.exec(f"bash -c 'exec 3<>/dev/tcp/{host}/{port}' || nc -w 1 {host} {port}", timeout_s=3)
            with pytest.raises(TimeoutError):
                listener.accept()


@needs("isolated")
@async_test
async def test_the_host_is_out_of_reach(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALE_KIT_HOST", "1")
    secret = write_secret(subject.folder / "secret-of-the-host")
    async with started(subject) as (_, box):
        seen = await box.exec(f"cat {secret}")
        assert b"secret" not in seen.stdout, "an isolated sandbox must not read the host's files"
        own = read_own_command_line()
        hidden = await box.exec("env")
        assert b"ALE_KIT_HOST" not in hidden.stdout, (
            "an isolated sandbox must not hand the host's environment to commands"
        )
        if own:
            seen = await box.exec(f"cat /proc/{os.getpid()}/cmdline")  # another process may have that number in there
            assert seen.stdout != own, "an isolated sandbox must not see the host's processes"


@needs("isolated")
@async_test
async def test_commands_begin_in_the_work_folder_of_the_spec(subject: Subject) -> None:
    async with started(subject, workdir="/srv/kit", files={"given": b"1"}) as (_, box):
        assert await work_folder(box) == "/srv/kit", "commands must begin in the spec's workdir"
        assert await box.download("/srv/kit/given") == b"1", "spec.files must stand in the spec's workdir"


@needs("limits")
@async_test
async def test_limits_are_enforced(subject: Subject) -> None:
    async with started(subject, resources=Resources(pids=32, memory_mib=128)) as (provider, box):
        if "limits" not in provider.capabilities:
            return  # narrowed by start(): this machine does not give it, and the provider says so
        crowd = "i=0; while [ $i -lt 200 ]; do sleep 8 >/dev/null 2>&1 & i=$((i+1)); done; echo all"
        crowded = await box.exec(crowd, timeout_s=4)
        assert b"all" not in crowded.stdout, "a command must not start 200 processes where pids is 32"
        await box.kill_agent_processes()
        fat = await box.exec("head -c 400000000 /dev/zero | tail", timeout_s=20)
        assert fat.exit_code != 0, "a command that holds 400 MB must fail where memory_mib is 128"
        assert (await box.exec("echo on")).stdout == b"on\n", "a sandbox must survive a command that hit a limit"


@needs("users")
@async_test
async def test_the_tests_files_are_hidden_from_the_agent(subject: Subject) -> None:
    async with started(subject) as (provider, box):
        if "users" not in provider.capabilities:
            return
        await box.upload({"/tmp/hidden/test": b"answer"}, user=TESTS, mode=0o600)
        assert (await box.exec("cat /tmp/hidden/test", user=TESTS)).stdout == b"answer", (
            "the tests' user reads its files"
        )
        seen = await box.exec("cat /tmp/hidden/test", user=AGENT)
        assert b"answer" not in seen.stdout, "the agent must not read files of the tests' user"
