"""What a server is started with: GPUs, the user's variables, and the settings that a server at a URL cannot have."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale_engines.server import launch, python_environments
from ale_engines.server.launch import Launch, choose_python, describe_devices, list_gpus, make_environment
from ale_engines.server.model_folder import ModelFolder
from ale_engines.server.settings import ServerSettings


def launch_on(cuda: bool) -> Launch:
    model = ModelFolder(Path("model"), {}, {}, 0)
    return Launch(Path("python"), model, "bfloat16", cuda, 128, 1, Path("work"), Path("weights"))


def gpus_of(settings: ServerSettings, cuda: bool = True) -> list[str | None]:
    """The GPUs that each replica sees."""
    launch = launch_on(cuda)
    environments = [make_environment(launch, settings, number, {"OWN": "1"}) for number in range(settings.replicas)]
    assert all(environment["OWN"] == "1" for environment in environments)
    return [environment.get("CUDA_VISIBLE_DEVICES") for environment in environments]


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(launch, "list_gpus", lambda: ["0", "1", "2", "3"])


def test_replicas_share_the_gpus_of_the_machine_or_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus_of(ServerSettings(replicas=4)) == ["0", "1", "2", "3"]
    assert gpus_of(ServerSettings(replicas=2, tensor_parallel=2)) == ["0,1", "2,3"]
    named = {"CUDA_VISIBLE_DEVICES": "1,2,3"}
    assert gpus_of(ServerSettings(replicas=3, environment=named)) == ["1", "2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert gpus_of(ServerSettings(replicas=2)) == ["GPU-a", "GPU-b"]
    assert gpus_of(ServerSettings()) == ["GPU-a,GPU-b"], "one server sees all"
    assert gpus_of(ServerSettings(replicas=2), cuda=False) == ["", ""]


@pytest.mark.parametrize(
    ("cuda", "visible", "devices"),
    [
        (False, "", "cpu"),
        (True, None, "cuda:0, cuda:1"),
        (True, "2,3", "cuda:2, cuda:3"),
        (True, "0,1,2,3", "cuda:0, cuda:1"),
    ],
)
def test_the_devices_of_a_server_are_those_that_it_takes(cuda: bool, visible: str | None, devices: str) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert describe_devices(launch_on(cuda), ServerSettings(tensor_parallel=2), environment) == devices


def test_what_a_killed_guard_leaves_is_removed_with_the_folders(tmp_path: Path) -> None:
    model = ModelFolder(Path("model"), {}, {}, 0)
    work, weights = Path(tempfile.mkdtemp(prefix="ale-test-", dir=tmp_path)), tmp_path / "weights"
    weights.mkdir()
    left = launch.SHARED_MEMORY / f"sem.{work.name}-1"
    left.touch()
    Launch(Path("python"), model, "float32", False, 128, 1, work, weights).remove_folders()
    assert not any(path.exists() for path in (work, weights, left))


def test_too_few_gpus_are_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"3 servers with 2 GPU\(s\) each need 6, and there are 4 \(0, 1, 2, 3\)"):
        gpus_of(ServerSettings(replicas=3, tensor_parallel=2))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"url": "localhost:8000"}, "`url` is an address such as http://host:8000, not localhost:8000"),
        ({"url": "http://a:1", "threads": 2, "arguments": ["--x"]}, "arguments, threads would change nothing"),
    ],
)
def test_a_url_goes_with_nothing_that_only_a_start_needs(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ServerSettings.model_validate(settings)


def test_gpus_are_counted_as_cuda_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container has the device files of its own GPUs, under the machine's numbers."""
    for name in ("nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(launch, "DEVICES", tmp_path)
    assert list_gpus() == ["0", "1"]


@pytest.mark.parametrize(
    ("device", "gpu", "installed", "chosen"),
    [
        ("auto", True, "cpu cuda", "cuda"),
        ("auto", True, "cpu", "cpu"),
        ("auto", False, "cpu cuda", "cpu"),
        ("cpu", True, "cpu cuda", "cpu"),
        ("cuda", True, "cpu cuda", "cuda"),
        ("cpu", True, "cuda", "for CPUs is installed .* Run `ale engine install crate --cpu`"),
        ("cuda", True, "cpu", "for GPUs is installed .* Run `ale engine install crate`,"),
        ("auto", True, "", "for GPUs or CPUs is installed"),
    ],
)
def test_the_build_is_that_of_the_device(
    device: str, gpu: bool, installed: str, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_environments, "NVIDIA_DRIVER", tmp_path)
    if not gpu:
        monkeypatch.setattr(python_environments, "NVIDIA_DRIVER", tmp_path / "nothing")
    settings = ServerSettings.model_validate({"device": device})

    def find(build: str) -> Path | None:
        return Path(build) if build in installed.split() else None

    if len(chosen) < 5:
        assert choose_python(settings, find, "crate") == (Path(chosen), chosen)
    else:
        with pytest.raises(ConfigError, match=chosen):
            choose_python(settings, find, "crate")
