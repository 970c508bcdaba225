"""What is written for ROCK runs unchanged: environments, agents, jobs, evaluations, and the folders that they use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from rock.actions import Command, CreateBashSessionRequest
from rock.sdk.job.api import Job
from rock.sdk.job.config import BashJobConfig
from rock.sdk.sandbox.agent.config import AgentBashCommand
from rock.sdk.sandbox.agent.rock_agent import RockAgentConfig
from rock.sdk.sandbox.client import RunMode
from rock.sdk.sandbox.runtime_env import PythonRuntimeEnvConfig
from rock.sdk.sandbox.runtime_env.base import RuntimeEnv
from service_process import Service, StartSandbox

pytestmark = [pytest.mark.bwrap, pytest.mark.slow, pytest.mark.filterwarnings("ignore:deprecated")]
INSTALL = "mkdir -p runtime-env/bin && ln -s $(command -v python3) runtime-env/bin/python"
FOLDERS = ["/data/logs", "/data/logs/user-defined", "/root", "/testbed"]


@pytest.fixture(autouse=True)
def own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCK's setting for how a sandbox gets its Python: here from the machine, not from the internet."""
    monkeypatch.setenv("ROCK_RTENV_PYTHON_V31114_INSTALL_CMD", INSTALL)


async def test_a_failing_job_in_the_background_gives_its_plain_output(start: StartSandbox) -> None:
    box = await start()
    for job in ("echo out; exit 3", "sleep 1.5; echo out; exit 3"):
        done = await box.arun(f"bash -c '{job}'", mode=RunMode.NOHUP)
        assert (done.exit_code, done.output, done.failure_reason) == (0, "out", "")
    logged = await box.arun("bash -c 'exit 3'", mode=RunMode.NOHUP, ignore_output=True, output_file="/tmp/log.txt")
    assert (logged.exit_code, "Status: completed" in logged.output) == (0, True)


async def test_a_client_that_asks_for_it_gets_the_exit_code_of_its_job(start: StartSandbox) -> None:
    box = await start(extra_headers={"X-Job-Exit-Codes": "true"})
    done = await box.arun("bash -c 'echo out; exit 3'", mode=RunMode.NOHUP)
    assert (done.exit_code, done.output) == (3, "out")


async def test_a_runtime_environment_is_made_though_its_check_of_it_fails(start: StartSandbox) -> None:
    """The client checks it by `test -x python` in another folder than the one where it put Python."""
    env = await RuntimeEnv.create(await start(), PythonRuntimeEnvConfig(pip_index_url=None))
    assert env.initialized
    assert (await env.run("python -c 'print(6 * 7)'")).output == "42"


async def test_an_agent_is_installed_and_runs(start: StartSandbox, tmp_path: Path) -> None:
    box = await start()
    (tmp_path / "agent.py").write_text("import sys; print('done:', sys.argv[1]); sys.exit(4)")
    config = RockAgentConfig(
        working_dir=str(tmp_path),
        run_cmd="python ${working_dir}/agent.py ${prompt}",
        pre_init_cmds=[AgentBashCommand(command="grep -q nothing /etc/hosts")],
        post_init_cmds=[AgentBashCommand(command="mkdir -p /root/.agent && echo x > ~/.agent && false")],
        runtime_env_config=PythonRuntimeEnvConfig(pip_index_url=None),
        agent_run_check_interval=5,
    )
    await box.agent.install(config)
    ran = await box.agent.run("find the fault")
    assert (ran.exit_code, ran.output) == (0, "done: find the fault")


async def test_a_job_ends_with_its_output_in_rocks_folder_of_logs(service: Service) -> None:
    environment: dict[str, Any] = {"base_url": service.url, "memory": "256m", "cpus": 0.5}
    script = "echo from the job; echo kept > /data/logs/user-defined/artifact; exit 5"
    done = await Job(BashJobConfig(job_name="one", script=script, environment=environment)).run()
    assert (done.status, done.raw_output, done.exit_code) == ("completed", "from the job", 0)


async def test_the_result_of_an_evaluation_is_read_of_the_output_of_a_failing_run(start: StartSandbox) -> None:
    """As in ROCK's example for SWE-bench: the tests' run fails, and its output holds the result."""
    box = await start()
    await box.create_session(CreateBashSessionRequest(session="swe", env_enable=True))
    script = "#!/bin/bash\necho SWEBench results starts here\necho FAILED\necho SWEBench results ends here\nexit 1\n"
    await box.write_file_by_path(script, "/testbed/run.sh")
    done = await box.arun("bash /testbed/run.sh", session="swe", mode=RunMode.NOHUP)
    found = re.search(r"SWEBench results starts here\s*(.*?)\s*SWEBench results ends here", done.output, re.DOTALL)
    assert found, done
    assert found[1] == "FAILED"


async def test_the_folders_of_rocks_images_are_there_and_belong_to_the_sandbox(start: StartSandbox) -> None:
    box, other = await start(), await start()
    await box.create_session(CreateBashSessionRequest(session="s", remote_user="root"))
    for folder in FOLDERS:
        assert (await box.arun(f"test -d {folder} && echo mine > {folder}/file", session="s")).exit_code == 0
        assert (await box.write_file_by_path("x", f"{folder}/new/file")).success
    seen = await other.execute(Command(command=["find", *FOLDERS, "-xdev", "-type", "f"]))
    assert (seen.exit_code, seen.stdout) == (0, "")


async def test_a_user_that_cannot_be_is_refused_by_name(start: StartSandbox) -> None:
    box = await start()
    assert not await box.remote_user.create_remote_user("rock")
    refused = await box.execute(Command(command=["useradd", "-m", "-s", "/bin/bash", "rock"]))
    assert "no right to add users to this sandbox" in refused.stderr
    with pytest.raises(Exception, match="not as 'rock'; leave remote_user out"):
        await box.create_session(CreateBashSessionRequest(session="s", remote_user="rock"))


async def test_the_disk_of_a_sandbox_is_as_large_as_its_status_says(start: StartSandbox) -> None:
    box = await start(disk="50g")
    disk = (await box.get_status()).disk
    assert disk == "512m", "the limit of local sandboxes"
    for folder in ("/tmp", "/root", "/testbed"):
        for size, exit_code in (("100M", 0), ("513M", 1)):
            filled = await box.execute(Command(command=["fallocate", "-l", size, f"{folder}/file"]))
            assert (filled.exit_code, "No space" in filled.stderr) == (exit_code, bool(exit_code)), folder
            await box.execute(Command(command=["rm", "-f", f"{folder}/file"]))
