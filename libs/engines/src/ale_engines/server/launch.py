"""What a server is started with, and the surroundings that it gets: its environment, GPUs, log and folders."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ale.errors import ConfigError, EngineError
from ale.specs.driver import DriverContext
from ale.specs.engine import GenerateRequest
from ale_engines.server import process_guard as guard
from ale_engines.server.model_folder import ModelFolder
from ale_engines.server.python_environments import CPU, CUDA, list_devices
from ale_engines.server.settings import ServerSettings
from ale_engines.weights.shared_memory import SHARED_MEMORY, make_weights_folder

DEVICES = Path("/dev")
PARENT_MAX = 50
"""Characters of the folder for temporary files, at most: below it, servers name sockets `ale-sglang-ABCDEFGH/UUID`, and
the path of a Unix socket has 107 at most."""
OWN_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP", "PYTHONDONTWRITEBYTECODE")
"""Variables for ALE's Python, which would lead the server's to packages that are not its own, or let
it compile all of them anew."""


@dataclass(frozen=True)
class Launch:
    """One start of a server: everything that its command line is made from."""

    python: Path
    model: ModelFolder
    dtype: str
    cuda: bool
    max_context: int
    threads: int
    work: Path
    """A new folder that only this user can read, for a socket, files of the launcher and all that the server writes
    into its temporary folder; it vanishes with the server. Its path is short enough for Unix sockets in it."""
    weights: Path
    """A new folder for versions of the weights, in shared memory where there is room; it vanishes with the server."""

    @property
    def folders(self) -> tuple[Path, Path]:
        """The folders that vanish with the server."""
        return self.work, self.weights

    @property
    def leftovers(self) -> tuple[Path, ...]:
        """What the guard removes: the folders, and what a killed server leaves in shared memory, under names with that
        of `work`."""
        return *self.folders, SHARED_MEMORY / f"*{self.work.name}-*"

    def remove_folders(self) -> None:
        """Remove `leftovers`, which is left to do if the server could not be started, or its guard was killed."""
        for path in self.leftovers:
            guard.remove(str(path))


@dataclass(frozen=True)
class ServerSetup:
    """What a server at a URL was started with."""

    dtype: str
    """The type of its weights, such as `bfloat16`."""
    max_context: int


def list_gpus() -> list[str]:
    """Return the numbers of this machine's NVIDIA GPUs, as CUDA counts them: a container may have `/dev/nvidia2`
    alone, which is CUDA's GPU 0."""
    return [str(number) for number in range(len([*DEVICES.glob("nvidia[0-9]*")]))]


def choose_python(settings: ServerSettings, find: Callable[[str], Path | None], server: str) -> tuple[Path, str]:
    """Return the Python that has the server, and the device for which: `cpu` or `cuda`. `find` finds the installed one
    for a device. `auto` is the GPU where there is one and the server's build for it, otherwise the CPU.

    Raises `ConfigError` if there is none."""
    devices = list_devices(settings.device)
    if settings.python is not None:
        if not settings.python.is_file():
            raise ConfigError(f"engine.python: there is no {settings.python}.")
        return settings.python, devices[0]
    for device in devices:
        if (python := find(device)) is not None:
            return python, device
    commands = {CPU: f"`ale engine install {server} --cpu`", CUDA: f"`ale engine install {server}`"}
    builds = {CPU: "CPUs", CUDA: "GPUs"}
    raise ConfigError(
        f"engine: no environment with {server} for {' or '.join(builds[device] for device in devices)} is installed "
        f"(engine.device is {settings.device}). Run {' or '.join(commands[device] for device in devices)}, or name its "
        "Python in engine.python."
    )


def check_release(release: str, versions: tuple[str, str], name: str) -> None:
    """Raise `EngineError` if a server's release is not in `versions[0] <= release < versions[1]`."""

    def parse(text: str) -> tuple[int, ...]:
        return tuple(int(number) for number in re.findall(r"\d+", text)[:3])

    if not parse(versions[0]) <= parse(release) < parse(versions[1]):
        raise EngineError(
            f"{name} is release {release or '(unknown)'}, but this plugin was made for {versions[0]} up to, and "
            f"without, {versions[1]}. Let it be served by one of those (engine.python names an environment)."
        )


def check_setup(setup: ServerSetup, dtype: str, max_context: int, name: str) -> None:
    """Raise `EngineError` if a server was not started with what the settings say; `dtype` may be `auto`."""
    if dtype not in ("auto", setup.dtype):
        raise EngineError(
            f"{name} holds its weights in {setup.dtype}, but engine.dtype is {dtype}. Set engine.dtype to "
            f"{setup.dtype} or auto, or start the server with `--dtype {dtype}`."
        )
    if setup.max_context < max_context:
        raise EngineError(
            f"{name} takes requests of {setup.max_context} tokens, and a context of {max_context} is wanted. Set "
            f"engine.max_context to {setup.max_context}, or start the server with a longer context."
        )


def check_request(request: GenerateRequest, room: int, name: str) -> None:
    """Raise `EngineError` if a request cannot be served; `room` is how many tokens fit after its prompt."""
    length, max_tokens = len(request.token_ids), request.sampling.max_tokens
    if length == 0:
        raise EngineError(f"{name} was given an empty prompt; a prompt has at least one token.")
    if room < 1:
        raise EngineError(
            f"A prompt of {length} tokens cannot be answered in a context of {length + room}. Raise "
            "engine.max_context (and the model's own limit), or let the agent shorten its context sooner."
        )
    if max_tokens < 1:
        raise EngineError(f"max_tokens must be at least 1, not {max_tokens}.")


def make_launch(python: Path, device: str, settings: ServerSettings, model: ModelFolder, name: str) -> Launch:
    """Choose what the settings leave open, and make the folders."""
    cuda = device == CUDA
    return Launch(
        python=python,
        model=model,
        dtype=model.dtype(settings.dtype, cuda),
        cuda=cuda,
        max_context=model.max_context(settings.max_context),
        threads=settings.threads or max(1, len(os.sched_getaffinity(0)) // (2 * settings.replicas)),
        work=Path(tempfile.mkdtemp(prefix=f"ale-{name}-", dir=find_short_parent())),
        weights=make_weights_folder(2 * model.size),
    )


def find_short_parent() -> str:
    """Return the folder for temporary files, or `/tmp` if its path is too long for sockets below it."""
    parent = tempfile.gettempdir()
    return parent if len(parent) <= PARENT_MAX else "/tmp"


def make_environment(launch: Launch, settings: ServerSettings, number: int, own: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of replica `number`: ours without what belongs to our Python, then `own` (what the
    server needs), then the user's settings. Several replicas share the visible GPUs out among them.

    Raises `ConfigError` if there are too few GPUs."""
    environment = {name: value for name, value in os.environ.items() if name not in OWN_PYTHON}
    environment["OMP_NUM_THREADS"] = str(launch.threads)
    # What the server leaves vanishes with it; what it compiles, which takes seconds, is for the next one as well.
    environment["TMPDIR"] = str(launch.work)
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")
    if not launch.cuda:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    environment |= {**own, **settings.environment}
    if launch.cuda and settings.replicas > 1:
        names = find_visible_gpus(environment)
        first = number * settings.tensor_parallel
        mine = names[first : first + settings.tensor_parallel]
        if len(mine) < settings.tensor_parallel:
            raise ConfigError(
                f"engine: {settings.replicas} servers with {settings.tensor_parallel} GPU(s) each need "
                f"{settings.replicas * settings.tensor_parallel}, and there are {len(names)} ({', '.join(names)}). "
                "Lower engine.replicas or engine.tensor_parallel, or name more in "
                "engine.environment.CUDA_VISIBLE_DEVICES."
            )
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    return environment


def describe_devices(launch: Launch, settings: ServerSettings, environment: Mapping[str, str]) -> str:
    """Return the devices of a server with this environment, for people: `cpu`, or such as `cuda:0, cuda:1`."""
    if not launch.cuda:
        return "cpu"
    return ", ".join(f"cuda:{name}" for name in find_visible_gpus(environment)[: settings.tensor_parallel])


def find_visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the GPUs that a process with this environment sees."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else list_gpus()


def choose_log(context: DriverContext, name: str) -> tuple[Path, IO[bytes] | None]:
    """Return the path for what a server writes. Without a run's folder it is that of an open file without a name, which
    is returned too: it is there until the caller closes it or ends."""
    if context.run_dir is not None:
        return context.run_dir / "engine" / f"{name}.log", None
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    return Path(f"/proc/{os.getpid()}/fd/{file.fileno()}"), file
