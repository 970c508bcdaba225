"""The attacks in local sandboxes of a user who is not root: the agent is the same user as its sandbox's resident.

Bombs are left out: such a user has no control groups, and the sandboxes then promise no limits.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ale.specs.sandbox import ExecResult

from .attack import Attack, judge, text_of
from .catalogue import ATTACKS as CATALOGUE
from .host import Host
from .world import NAMESPACES

pytestmark = [pytest.mark.bwrap, pytest.mark.timeout(180)]
ATTACKS = [attack for attack in CATALOGUE if attack.same_user]


@pytest.fixture(scope="module")
def outcomes(host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ExecResult, bool]]:
    """What each attack's program said, and whether its resident lived on."""
    if shutil.which("bwrap") is None or shutil.which("unshare") is None:
        pytest.skip("bubblewrap or unshare is not installed")
    here = os.stat("/").st_dev
    facts: dict[str, Any] = {
        "name": host.name,
        "secret": str(host.file),
        "addresses": host.listeners.addresses,
        "abstract": host.listeners.abstract,
        "socket": host.listeners.path,
        "base": "/tmp/ale-local-0",
        "root": True,
        "pids": [p.running.pid for p in host.processes] + [os.getpid()],
        "disk": (os.major(here), os.minor(here)),
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES},
    }
    programs = {attack.name: text_of(attack.program, facts).decode() for attack in ATTACKS}
    command = [
        "unshare",
        "--user",
        "--map-user=1234",
        "--map-group=1234",
        sys.executable,
        str(Path(__file__).with_name("without_root.py")),
    ]
    folder = str(tmp_path_factory.mktemp("state"))
    done = subprocess.run([*command, folder], input=json.dumps(programs), capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    found = {}
    for line in done.stdout.splitlines():
        name, code, stdout, stderr, alive = json.loads(line)
        found[name] = ExecResult(code, base64.b64decode(stdout), base64.b64decode(stderr), 0.0), alive
    return found


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_a_users_own_sandboxes_hold_too(
    attack: Attack, outcomes: dict[str, tuple[ExecResult, bool]], host: Host
) -> None:
    result, alive = outcomes[attack.name]
    assert host.secret not in result.output, f"THE ATTACK SUCCEEDED: {attack.name}"
    judge(attack, result)
    assert alive, "The resident lives on."


def test_the_host_is_unharmed(outcomes: dict[str, tuple[ExecResult, bool]], host: Host) -> None:
    assert len(outcomes) == len(ATTACKS)
    assert list(host.harm()) == []
