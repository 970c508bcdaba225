"""The pages of clusters in docs and the files of examples/cluster load, fit each other, and say what the code says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ale.errors import ConfigError
from ale.registry.drivers import load_plugin
from ale_ray.command import cluster_app
from ale_ray.ray_connection import ActorResources, check_resources
from ale_ray.settings import RayConfig
from ale_train.config.load import load_run_config

ROOT = Path(__file__).parents[1]
PAGES = "".join((ROOT / "docs" / page).read_text() for page in ("cluster.md", "cluster_operation.md"))
EXAMPLES = ROOT / "examples" / "cluster"
MANIFEST = yaml.safe_load((EXAMPLES / "rayjob.yaml").read_text())
SCRIPT = EXAMPLES / "slurm.sh"
GPU = "nvidia.com/gpu"

UseNodes = Callable[..., None]


@pytest.fixture
def use_nodes(monkeypatch: pytest.MonkeyPatch) -> UseNodes:
    """Have Ray report nodes, each of so many CPUs and GPUs."""

    def use(*nodes: tuple[float, float]) -> None:
        found = [{"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}} for cpus, gpus in nodes]
        monkeypatch.setattr("ray.nodes", lambda: found)

    return use


def cluster_of(name: str) -> RayConfig:
    """The section `cluster` of an example."""
    choice = load_run_config(EXAMPLES / name).run.cluster
    assert choice is not None
    config = load_plugin("cluster", choice, "cluster").config
    assert isinstance(config, RayConfig)
    return config


def rooms_of(c: RayConfig) -> list[ActorResources]:
    return [
        *[ActorResources("engine", c.engine.cpus, c.engine.devices)] * c.engine.replicas,
        *[ActorResources("trainer", c.trainer.cpus, c.trainer.devices)] * c.trainer.ranks,
        *[ActorResources("rollout", c.rollout.cpus)] * c.rollout.workers,
    ]


def groups() -> list[dict[str, Any]]:
    """The groups of pods of the manifest, the head's first."""
    cluster = MANIFEST["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def pods_of(group: dict[str, Any]) -> list[tuple[float, float]]:
    """CPUs and GPUs of each pod of a group, as Ray counts them."""
    (container,) = group["template"]["spec"]["containers"]
    gpus = float(container["resources"]["limits"].get(GPU, 0))
    return [(float(group["rayStartParams"]["num-cpus"]), gpus)] * int(group.get("replicas", 1))


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml") if path.name != "rayjob.yaml"))
def test_an_example_is_a_run_on_a_cluster(name: str) -> None:
    assert rooms_of(cluster_of(name))


def test_the_manifest_has_what_a_rayjob_needs() -> None:
    assert MANIFEST["apiVersion"] == "ray.io/v1"
    assert MANIFEST["kind"] == "RayJob"
    assert MANIFEST["metadata"]["name"]
    spec = MANIFEST["spec"]
    assert re.fullmatch(r"ale run \S+ --out \S+", spec["entrypoint"]), "one plain command: KubeRay splits it"
    assert "backoffLimit" not in spec, "a run is not begun twice in one folder"
    assert re.fullmatch(r"\d+\.\d+\.\d+", spec["rayClusterSpec"]["rayVersion"])
    for group in spec["rayClusterSpec"]["workerGroupSpecs"]:
        assert group["groupName"]
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]


def test_every_container_has_resources_and_the_disk_of_the_runs() -> None:
    for group in groups():
        pod = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container["name"]
            assert container["image"]
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys()
            assert resources["requests"].get(GPU) == resources["limits"].get(GPU), "Kubernetes demands it"
            assert all(isinstance(value, str) for value in resources["limits"].values())
            (mount,) = container["volumeMounts"]
            assert mount["mountPath"] == "/runs"
            assert volumes[mount["name"]]["persistentVolumeClaim"]["claimName"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "the CRD has strings"


def test_the_pods_have_room_for_the_run_and_for_nothing_elsewhere(use_nodes: UseNodes) -> None:
    head, *workers = groups()
    assert pods_of(head) == [(0.0, 0.0)]
    pods = [pod for group in workers for pod in pods_of(group)]
    rooms = rooms_of(cluster_of("gpus.yaml"))
    use_nodes(*pods)
    check_resources(rooms)
    assert sum(cpus for cpus, _ in pods) == sum(room.cpus for room in rooms), "so Ray has no choice"
    assert sum(gpus for _, gpus in pods) == sum(room.devices for room in rooms)


def test_the_nodes_of_the_slurm_job_have_room_for_the_run(use_nodes: UseNodes) -> None:
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", SCRIPT.read_text(), re.MULTILINE))
    assert options["ntasks-per-node"] == "1"
    node = float(options["cpus-per-task"]), float(options["gpus-per-node"])
    use_nodes(*[node] * int(options["nodes"]))
    check_resources(rooms_of(cluster_of("gpus.yaml")))


def test_the_script_is_bash() -> None:
    done = subprocess.run(["bash", "-n", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (program,) = re.findall(r"<<'PYTHON'\n(.*?)^PYTHON$", SCRIPT.read_text(), re.MULTILINE | re.DOTALL)
    compile(program, str(SCRIPT), "exec")


def test_the_page_quotes_the_sentence_about_room(use_nodes: UseNodes) -> None:
    use_nodes((8.0, 0.0))
    rooms = [*[ActorResources("engine", 1.0, 1)] * 4, ActorResources("trainer", 1.0)]
    with pytest.raises(ConfigError) as refused:
        check_resources(rooms)
    assert str(refused.value) in PAGES.replace("\n> ", " ")


def test_the_page_has_every_setting_and_every_command() -> None:
    text = PAGES
    for name, field in RayConfig.model_fields.items():
        assert f"cluster.{name}" in text, name
        for key in getattr(field.annotation, "model_fields", {}):
            assert f"`{key}`" in text, f"{name}.{key}"
    for command in cluster_app.registered_commands:
        assert f"ale cluster {command.name} RUN" in text
