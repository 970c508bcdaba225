"""Gives an agent without a network access to the model: requests and answers go through a file in the sandbox.

1. The relay `files` (`ale_endpoint.relays`) runs in the sandbox, on Python 3.8 or newer: it serves chat completions on
   a loopback port and writes requests to a log.
2. Meanwhile `answer_log` reads the log from outside, asks the session, and appends the answers.

Each session has its own log, because a sandbox may have served an earlier episode.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ale.errors import AgentError
from ale.specs.sandbox import Sandbox
from ale.specs.scaffold import ModelSession
from ale_endpoint.dialects.pictures import Pictures
from ale_endpoint.file_protocol import SandboxLink, answer_log
from ale_endpoint.relays import script

PROGRAM = "/tmp/ale-files.py"
START_S, CLEAR_S, LONGEST_S = 20.0, 20.0, 86400.0
_LISTENING = re.compile(r"^listening on (http://\S+) for ", re.MULTILINE)


@asynccontextmanager
async def model_through_files(
    sandbox: Sandbox, session: ModelSession, pictures: Pictures = "refuse"
) -> AsyncIterator[str]:
    """Yield the session's URL for programs in the sandbox, without the API's path; it is valid in the block. Raises
    `AgentError` if the sandbox cannot run the relay, and `SandboxError`."""
    log = f"/tmp/ale-model-{session.id}.log"
    await sandbox.upload({PROGRAM: script("files").encode()})
    try:
        async with asyncio.TaskGroup() as group:
            relay = f"python3 {PROGRAM} {log} --port 0 >{log}.out 2>&1"
            relaying = group.create_task(sandbox.exec(relay, timeout_s=LONGEST_S))
            origin = await _wait_for_relay(sandbox, f"{log}.out")
            answering = group.create_task(answer_log(session, SandboxLink(sandbox, log), pictures=pictures))
            yield origin
            answering.cancel()
            relaying.cancel()
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    await sandbox.exec(f"rm -f {log} {log}.*", timeout_s=CLEAR_S)


async def _wait_for_relay(sandbox: Sandbox, output: str) -> str:
    """Wait until the relay prints its URL to a file, and return the URL."""
    tries = int(START_S * 10)
    result = await sandbox.exec(
        f"for i in $(seq {tries}); do test -s {output} && break; sleep 0.1; done; cat {output}", timeout_s=START_S + 10
    )
    found = _LISTENING.search(result.output)
    if found is None:
        raise AgentError(
            "The sandbox has no network, so its agent asks the model through a file; that needs `python3` 3.8 or newer "
            f"in the sandbox, whose output was: {result.output.strip()[-500:] or '(nothing).'}"
        )
    return found[1]
