"""Deliberately wrong providers of sandboxes: each breaks one rule of the contract, and the kit says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong import AWAITED_S, SANDBOX, Wrong, assert_found

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]

RESET = """{sandbox}
        real = box.reset
        async def reset(spec):
            await real(spec)
            await box.exec({left!r})
        box.reset = reset
""".replace("{sandbox}", SANDBOX)

WRONG = {
    "a dead sandbox as a failed command": Wrong(
        "sandbox",
        SANDBOX
        + """
        real = box.exec
        async def exec(command, **more):
            try:
                return await real(command, **more)
            except SandboxError:
                return ExecResult(1, b"", b"gone", 0.1)
        box.exec = exec
""",
        "test_a_dead_sandbox_never_looks_like_a_failed_command",
        "a command whose sandbox was removed under it: it must raise SandboxError, it returned ExecResult",
    ),
    "stderr in stdout": Wrong(
        "sandbox",
        SANDBOX
        + """
        real = box.exec
        async def exec(command, **more):
            return await real(f"({command}) 2>&1", **more)
        box.exec = exec
""",
        "test_exec_returns_exit_code_stdout_and_stderr",
        "exec must keep stdout and stderr apart and whole",
    ),
    "a time-out without its code": Wrong(
        "sandbox",
        SANDBOX
        + """
        real = box.exec
        async def exec(command, **more):
            done = await real(command, **more)
            if not done.timed_out:
                return done
            return ExecResult(137, done.stdout, done.stderr, done.duration_s, done.timed_out)
        box.exec = exec
""",
        "test_a_time_out_kills_everything_and_keeps_the_output_so_far",
        "a time-out must give exit code 124, as timeout(1) does; it gave 137",
    ),
    "text only": Wrong(
        "sandbox",
        SANDBOX
        + """
        real = box.upload
        async def upload(files, **more):
            await real({k: v.decode("utf-8", "replace").encode() for k, v in files.items()}, **more)
        box.upload = upload
""",
        "test_files_are_the_same_after_upload_and_download",
        "download('every') must give what upload wrote",
    ),
    "one command at a time": Wrong(
        "sandbox",
        SANDBOX
        + """
        real, lock = box.exec, asyncio.Lock()
        async def exec(command, **more):
            async with lock:
                return await real(command, **more)
        box.exec = exec
""",
        "test_commands_run_side_by_side",
        "commands must run side by side",
    ),
    "networks ignored": Wrong(
        "sandbox",
        SANDBOX.replace(
            "super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'network': 'none'}))"
        ),
        "test_unsupported_requests_are_refused_and_not_ignored",
        "a spec with full, which the provider does not claim to give: it must raise ConfigError",
    ),
    "sandboxes left at close": Wrong(
        "sandbox",
        SANDBOX + "        self.sandboxes.pop(box.id)\n",
        "test_closing_the_provider_stops_everything",
        "a command whose provider is closed",
        timeout_s=AWAITED_S,
    ),
    "a lifetime that is not heard": Wrong(
        "sandbox",
        SANDBOX.replace(
            "super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'lifetime_s': None}))"
        ),
        "test_a_lifetime_ends_the_sandbox_or_is_refused",
        "a sandbox with lifetime_s=1 must be gone by then",
        timeout_s=AWAITED_S,
    ),
    "idleness that is not heard": Wrong(
        "sandbox",
        SANDBOX.replace(
            "super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'idle_s': None}))"
        ),
        "test_an_idle_sandbox_ends_and_a_busy_one_does_not_or_it_is_refused",
        "a sandbox with idle_s=3 must be gone by then",
        timeout_s=AWAITED_S,
    ),
    "limits that are not heard": Wrong(
        "sandbox",
        SANDBOX.replace(
            "super().start_sandbox(spec)",
            "super().start_sandbox(spec.model_copy(update={'resources': type(spec.resources)(pids=4000)}))",
        ),
        "test_limits_are_enforced",
        "a command must not start 200 processes where pids is 32",
    ),
    "another work folder": Wrong(
        "sandbox",
        SANDBOX.replace(
            "super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'workdir': '/elsewhere'}))"
        ),
        "test_commands_begin_in_the_work_folder_of_the_spec",
        "commands must begin in the spec's workdir",
    ),
    "sandboxes that cannot do what their class shows": Wrong(
        "sandbox",
        SANDBOX
        + """
    async def start(self):
        await super().start()
        self.sandbox_type = IsolatedSandbox
""",
        "test_the_class_of_its_sandboxes_shows_what_they_can_do",
        "sandbox_type must have what its sandboxes have: see Snapshots",
        config="isolation: none",
    ),
    "a task left at close": Wrong(
        "sandbox",
        SANDBOX + "        self.watcher = asyncio.create_task(asyncio.sleep(3600))\n",
        "test_each_sandbox_has_an_id_and_files_of_its_own",
        "the plugin must leave no asyncio task behind",
    ),
    "a reset that leaves a process": Wrong(
        "sandbox",
        RESET.format(left="setsid sleep 100 >/dev/null 2>&1 &"),
        "test_a_reset_leaves_no_trace_of_the_last_episode and processes",
        "a reset sandbox must look like a new one",
    ),
    "a reset that leaves a file": Wrong(
        "sandbox",
        RESET.format(left="echo left > /tmp/left"),
        "test_a_reset_leaves_no_trace_of_the_last_episode and files",
        "a reset sandbox must look like a new one",
    ),
    "a reset that leaves a mode": Wrong(
        "sandbox",
        RESET.format(left="chmod 700 /tmp"),
        "test_a_reset_leaves_no_trace_of_the_last_episode and files",
        "a reset sandbox must look like a new one",
    ),
    "a reset that leaves shared memory": Wrong(
        "sandbox",
        RESET.format(left="ipcmk -M 4096"),
        "test_a_reset_leaves_no_trace_of_the_last_episode and memory",
        "a reset sandbox must look like a new one",
    ),
    "a reset that leaves what comes back": Wrong(
        "sandbox",
        RESET.format(left="(sleep 0.2; echo left > /tmp/left) >/dev/null 2>&1 &"),
        "test_a_reset_sandbox_is_as_new_or_the_reset_fails and deeply",
        "reset() must mend it, or raise SandboxError",
    ),
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    assert_found(WRONG[what], tmp_path)
