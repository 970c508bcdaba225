"""What a process that serves has from its machine."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
from ale_rock.http.server import run

async def say(limits=resource.getrlimit):
    print(*limits(resource.RLIMIT_NOFILE))

resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
run(say())
"""


def test_a_process_that_serves_may_open_more_files_than_many_systems_begin_with() -> None:
    for hard, soft in ((2000, 2000), (300, 300)):
        argv = [sys.executable, "-c", PROGRAM.format(hard=hard)]
        said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        assert said.split() == [str(soft), str(hard)]
