"""One check of `ale doctor`, in a process of its own: `python -m ale.cli.doctor_child check|import TARGET...`.

It writes each finding as a line of JSON at once. What checks and imports print goes elsewhere.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

STATES = ("ok", "missing", "broken", "info")


def _load(target: str) -> Any:
    return metadata.EntryPoint("target", target, "group").load()


def _describe(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def run_check(target: str) -> Iterator[dict[str, str]]:
    """Yield the findings of a check; an error of it is one too."""
    try:
        for finding in _load(target)():
            state = finding.state if finding.state in STATES else "broken"
            yield {"name": str(finding.name), "state": state, "text": str(finding.text), "mend": str(finding.mend)}
    except BaseException as error:  # a check may raise anything, SystemExit included
        yield {"name": target, "state": "broken", "text": f"the check failed: {_describe(error)}", "mend": ""}


def run_imports(targets: Sequence[str]) -> Iterator[dict[str, str]]:
    """Import `package=module:name` one by one, and yield what came of each."""
    for each in targets:
        package, _, target = each.partition("=")
        text, state = target, "ok"
        try:
            _load(target)
        except BaseException as error:
            text, state = f"{target} cannot be imported: {_describe(error)}", "broken"
        mend = f"pip install --force-reinstall {package}" if state == "broken" else ""
        yield {"name": package, "state": state, "text": text, "mend": mend}


def main(arguments: Sequence[str]) -> None:
    """Run what the command line asks for."""
    kind, *targets = arguments
    with open(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        for line in run_check(targets[0]) if kind == "check" else run_imports(targets):
            print(json.dumps(line), file=out, flush=True)
    sys.stderr.flush()
    os._exit(0)  # threads that a library has left would hold it up


if __name__ == "__main__":
    main(sys.argv[1:])
