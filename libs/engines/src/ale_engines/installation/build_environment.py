"""Makes a server's environment. It runs as a program, `python -m ale_engines.installation.build_environment`, with a
request as JSON.

1. ALE's pip installs the pinned packages, and nothing else, into a venv in a temporary folder.
2. The venv's own Python must then import torch and find the server.
3. Only then is the folder renamed, so that an environment is either whole or not there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

CHECK = "import sys, torch; from importlib.metadata import version; print(version(sys.argv[1]))"


class BuildError(Exception):
    """The environment cannot be built; the message says why."""


@dataclass(frozen=True)
class BuildRequest:
    """What to build. `draft` is a new folder on the disk of `folder`, the place of the environment; `package` and
    `version` are the server's, and `torch_index` is the URL of a package index to look into for torch too, or empty."""

    folder: str
    draft: str
    requirements: tuple[str, ...]
    package: str
    version: str
    torch_index: str

    def command(self) -> list[str]:
        """Return the command that builds it."""
        return [sys.executable, "-m", "ale_engines.installation.build_environment", json.dumps(asdict(self))]


def build(request: BuildRequest) -> None:
    """Build the environment. Raises `OSError`, or `BuildError` if a program fails."""
    draft, folder = Path(request.draft), Path(request.folder)
    venv.create(draft, symlinks=True)
    python = draft / "bin" / "python"
    listed = draft / "requirements.txt"
    listed.write_text("\n".join(request.requirements) + "\n")
    index = ["--extra-index-url", request.torch_index] if request.torch_index else []
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install"]
    # What the server never imports need not be compiled, and what it does is when it first starts.
    run([*pip, "--progress-bar=off", "--no-deps", "--no-compile", *index, "-r", listed])
    check = subprocess.run([python, "-c", CHECK, request.package], capture_output=True, text=True)
    if (found := check.stdout.strip()) != request.version:
        reason = f"{request.package} is {found}" if found else (check.stderr.strip().splitlines() or ["no output"])[-1]
        raise BuildError(f"its Python does not import torch and find {request.package} {request.version}: {reason}")
    repoint_scripts(draft, folder)
    draft.rename(folder)


def repoint_scripts(draft: Path, folder: Path) -> None:
    """Replace the draft's path in the scripts of `bin`: they name their interpreter, also `activate` its folder."""
    for script in (draft / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        if bytes(draft) in text and b"\0" not in text:  # a zero byte: a program, which needs no interpreter
            script.write_bytes(text.replace(bytes(draft), bytes(folder)))


def run(command: list[str | Path]) -> None:
    """Run a program, which prints what it does. Raises `BuildError` if it fails."""
    if status := subprocess.run(command, check=False).returncode:
        raise BuildError(f"{' '.join(map(str, command[1:3]))} ended with exit status {status}")


if __name__ == "__main__":
    try:
        build(BuildRequest(**json.loads(sys.argv[1])))
    except (OSError, BuildError) as error:
        sys.exit(f"ERROR: {error}")
