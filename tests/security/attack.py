"""An attack, as data, and how its program's report is judged.

An attack is a sentence and a program that the agent runs. It failed if the program's tool was seen to work where it
may, each of its attempts was refused with a reason that is a refusal (a missing program or a wrong argument is none),
and nothing secret is in what it could read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ale.specs.sandbox import ExecResult

DENIED = frozenset({"EPERM", "EACCES"})
"""Not allowed."""
ABSENT = frozenset({"ENOENT", "ENOTDIR", "NOTHING"})
"""Not there; `NOTHING` is what a search says that found nothing."""
READ_ONLY = frozenset({"EROFS"})
NO_CALL = DENIED | {"ENOSYS"}
"""Refused by a filter, or not there at all."""
MARK = "FACTS = {}"
PRELUDE = Path(__file__).with_name("inside.py").read_text()


@dataclass(frozen=True)
class Attack:
    """What an agent tries."""

    name: str
    program: str
    """Python, after `inside.py`."""
    refused: frozenset[str] = DENIED
    """The reasons that count as a refusal."""
    ends: frozenset[int] = frozenset({0})
    """Exit codes that the program may have."""
    controls: bool = True
    """False where nothing of the kind may work at all, so that only the reason can show that the attempt was one."""
    root: bool = False
    """Whether an agent that is root in its container tries it too."""
    same_user: bool = True
    """Whether it must fail also where the agent is the same user as the resident."""
    only: frozenset[str] = frozenset()
    """Providers that promise this; empty: all."""

    def __str__(self) -> str:
        return self.name


@dataclass
class Report:
    """What a program said."""

    controls: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    did: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)


def text_of(program: str, facts: dict[str, Any]) -> bytes:
    """The whole program, as it goes to `python3 -`."""
    return f"{PRELUDE.replace(MARK, f'FACTS = {facts!r}', 1)}\n{program}\n".encode()


def report_of(result: ExecResult) -> Report:
    """Read the lines that a program printed."""
    report = Report()
    for line in result.stdout.decode("utf-8", "replace").splitlines():
        kind, _, rest = line.partition("\t")
        if kind == "control":
            report.controls.append(rest)
        elif kind == "broken":
            report.broken.append(rest)
        elif kind == "did":
            report.did.append(rest)
        elif kind == "refused":
            what, _, reason = rest.rpartition("\t")
            report.refused[what] = reason
        elif kind == "read":
            report.read.append(rest)
    return report


def judge(attack: Attack, result: ExecResult) -> None:
    """Assert that the attack was one, and that it failed."""
    report = report_of(result)
    said = f"{attack.name}: exit code {result.exit_code}\n{result.output[-3000:]}"
    assert not report.did, f"THE ATTACK SUCCEEDED ({report.did}) in {said}"
    assert not result.timed_out, f"The attack did not end: {said}"
    assert result.exit_code in attack.ends, f"The attack is broken: {said}"
    assert not report.broken, f"The attack's tool does not work ({report.broken}), so it shows nothing: {said}"
    assert report.controls or not attack.controls, f"The attack shows nothing without a control: {said}"
    assert report.refused, f"The attack attempted nothing: {said}"
    wrong = {what: reason for what, reason in report.refused.items() if reason not in attack.refused}
    assert not wrong, f"Failed, but not because it was refused: {json.dumps(wrong)} in {said}"
