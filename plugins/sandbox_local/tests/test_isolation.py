"""What a sandbox of namespaces keeps from its commands."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pydantic
import pytest

import ale_local
from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox import TESTS, Resources, SandboxSpec
from ale_local import LocalSandbox, LocalSandboxConfig, LocalSandboxProvider, base_folder, bubblewrap

from .conftest import SMALL, provider_for

INSTALLED = [m.__name__ for m in (pydantic, ale_local) if Path(str(m.__file__)).resolve().is_relative_to(sys.prefix)]
"""Those that lie where Python does, which the sandbox sees: not installed with --editable, and no link."""

pytestmark = pytest.mark.bwrap
PUBLIC = [f"/etc/{name}" for name in base_folder.ETC if os.path.exists(f"/etc/{name}")]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="several users need root outside")


async def test_there_is_no_network(box: LocalSandbox) -> None:
    assert (await box.exec("cat /proc/net/dev")).stdout.count(b":") == 1, "only the loopback"
    probe = "import socket; socket.create_connection(('1.1.1.1', 53), 2)"
    assert b"unreachable" in (await box.exec(f'python3 -c "{probe}"')).stderr


async def test_the_root_is_read_only(box: LocalSandbox) -> None:
    for path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/.ale/x", "/home/x"):
        assert (await box.exec(f"touch {path}")).exit_code != 0, path


async def test_what_programs_need_of_the_hosts_etc_is_there(box: LocalSandbox) -> None:
    assert (await box.exec(f"ls -d {' '.join(PUBLIC)}")).exit_code == 0
    for folder in base_folder.etc_folders():
        assert sorted((await box.exec(f"ls -A {folder}")).output.split()) == sorted(os.listdir(folder))
    assert (await box.exec("head -1 /etc/passwd")).output == "root:x:0:0:root:/root:/bin/sh\n", "its own"


async def test_the_hosts_secrets_are_out_of_reach(box: LocalSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    for path in ("/etc/shadow", "/etc/sudoers", "/root/.ssh", "/run", "/var", str(secret), str(Path(__file__))):
        assert (await box.exec(f"ls {path}")).exit_code != 0, path
        assert (await box.exec(f"ls {path}", user=TESTS)).exit_code != 0, path


async def test_the_host_environment_does_not_leak(
    wrapped: LocalSandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY_OF_SOMEBODY", "secret")
    async with await wrapped.start_sandbox(SandboxSpec()) as sandbox:
        assert b"API_KEY" not in (await sandbox.exec("env; cat /proc/*/environ")).stdout


async def test_commands_have_no_capabilities_and_cannot_gain_any(box: LocalSandbox) -> None:
    status = (await box.exec("grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)' /proc/self/status")).stdout.decode()
    values = dict(line.split(":\t") for line in status.splitlines())
    assert values.pop("NoNewPrivs") == "1"
    assert {int(value, 16) for value in values.values()} == {0}


async def test_only_the_sandboxs_own_processes_are_seen_and_the_resident_is_safe(box: LocalSandbox) -> None:
    assert (await box.exec("ls /proc | grep -c '^[0-9]'")).stdout.strip() in (b"3", b"4")
    await box.exec("kill -9 1; kill -STOP 1; kill -9 -1")
    assert (await box.exec("cat /proc/1/environ")).exit_code != 0
    assert (await box.exec("ls -l /proc/1/fd")).exit_code != 0
    assert (await box.exec("echo alive")).stdout == b"alive\n"


@as_root
async def test_inside_users_are_nobody_outside(box: LocalSandbox) -> None:
    await box.exec("sleep 4020 &")
    mapped = (await box.exec("cat /proc/self/uid_map")).stdout.split()
    assert mapped == [b"0", b"1900000000", b"65536"]


@as_root
async def test_the_agent_cannot_see_the_tests_but_the_tests_see_everything(box: LocalSandbox) -> None:
    await box.upload({"/tmp/hidden-1/sub/test.sh": b"echo ok"}, user=TESTS, mode=0o755)
    assert (await box.exec("cat /tmp/hidden-1/sub/test.sh; ls /tmp/hidden-1")).stdout == b""
    await box.exec("mkdir shut; echo secret > shut/f; chmod 000 shut/f shut")
    result = await box.exec("id -un; sh /tmp/hidden-1/sub/test.sh; cat shut/f; touch made", user=TESTS)
    assert (result.exit_code, result.stdout) == (0, b"tests\nok\nsecret\n")
    with pytest.raises(SandboxError, match="Permission denied"):
        await box.download("/tmp/hidden-1/sub/test.sh")


@as_root
async def test_a_link_of_the_agent_leads_an_upload_nowhere_it_could_not_go(box: LocalSandbox) -> None:
    await box.upload({"/tmp/hidden-2/f": b"mine"}, user=TESTS)
    await box.exec("ln -s /tmp/hidden-2/f link")
    with pytest.raises(SandboxError):
        await box.upload({"link": b"yours"})
    assert (await box.exec("cat /tmp/hidden-2/f", user=TESTS)).stdout == b"mine"


async def test_the_disk_limit_holds(box: LocalSandbox) -> None:
    assert b"No space left" in (await box.exec("head -c 17M /dev/zero > f")).stderr
    assert (await box.exec("rm f; head -c 10M /dev/zero > f")).exit_code == 0


async def test_the_process_limit_holds(wrapped: LocalSandboxProvider) -> None:
    if "pids" not in wrapped.groups:
        pytest.skip("no cgroups here")
    async with await wrapped.start_sandbox(SandboxSpec(resources=Resources(pids=20))) as sandbox:
        result = await sandbox.exec("exec sh -c 'for i in $(seq 30); do sleep 30 & done'")
        assert b"fork" in result.stderr
        assert (await sandbox.exec("true")).exit_code in (0, 1)
        await sandbox.kill_agent_processes()
        assert (await sandbox.exec("true")).exit_code == 0


async def test_the_memory_limit_takes_the_command_and_not_the_sandbox(wrapped: LocalSandboxProvider) -> None:
    if "memory" not in wrapped.groups:
        pytest.skip("no cgroups here")
    async with await wrapped.start_sandbox(SandboxSpec(resources=Resources(memory_mib=64))) as sandbox:
        result = await sandbox.exec("python3 -c 'len(bytearray(1) * (200 << 20))'; echo $?")
        assert result.stdout.strip() == b"137"
        assert (await sandbox.exec("echo alive")).stdout == b"alive\n"
        assert (await sandbox.stats()).memory_bytes is not None


async def test_stats_count_what_a_sandbox_uses(box: LocalSandbox) -> None:
    if not box.record.cgroups:
        pytest.skip("no cgroups here")
    await box.exec("sleep 60 & python3 -c 'sum(range(1000000))'")
    stats = await box.stats()
    assert stats.pids is not None
    assert stats.pids >= 3
    assert stats.cpu_s is not None
    assert stats.cpu_s > 0


async def test_python_of_the_host_runs_inside_with_its_packages(box: LocalSandbox) -> None:
    assert INSTALLED, "one of the two is installed here"
    look = f"from importlib.util import find_spec; print(find_spec('{INSTALLED[0]}').origin)"
    found = (await box.exec(shlex.join([sys.executable, "-c", look]))).output
    assert found.startswith(sys.prefix), found


@pytest.mark.parametrize("workdir", ["/", "relative", "/usr/x", "/tmp", "/a/../usr", "/etc"])
async def test_a_work_folder_of_the_system_is_refused(wrapped: LocalSandboxProvider, workdir: str) -> None:
    with pytest.raises(ConfigError, match="workdir"):
        await wrapped.start_sandbox(SandboxSpec(workdir=workdir))


async def test_the_work_folder_stands_where_it_was_asked_for(wrapped: LocalSandboxProvider) -> None:
    spec = SandboxSpec(workdir="/srv/deep/work", resources=SMALL)
    async with await wrapped.start_sandbox(spec) as sandbox:
        assert (await sandbox.exec("pwd; touch x && ls")).stdout == b"/srv/deep/work\nx\n"


async def test_without_bubblewrap_auto_warns_once_and_bubblewrap_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bubblewrap, "probe", lambda _: "there is no program `bwrap`")
    with pytest.raises(ConfigError, match="apt-get install bubblewrap"):
        await provider_for("bubblewrap").start()
    with caplog.at_level(logging.WARNING):
        async with provider_for("auto") as provider:
            assert provider.capabilities == provider.provides(LocalSandboxConfig(isolation="none"))
            async with await provider.start_sandbox(SandboxSpec(network="full")) as sandbox:
                assert (await sandbox.exec("echo plain")).stdout == b"plain\n"
    assert len([r for r in caplog.records if "isolate NOTHING" in r.message]) == 1


def test_a_normal_user_gets_namespaces_too(as_user: Callable[[str], list[str]]) -> None:
    assert as_user("isolation_as_user.py") == ["single 1000", "124 0"]
