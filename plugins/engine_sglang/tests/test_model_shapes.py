"""SGLang on a CPU serves what transformers computes from the same folder, at the start and after an update; or not at
all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale_engines.server.launch import Launch
from ale_engines.server.model_folder import read_model_folder
from ale_engines.server.python_environments import find_python
from ale_engines.server.settings import ServerSettings
from ale_engines.weights import fingerprint
from ale_sglang.model_limits import check_limits
from ale_sglang.replica import read_fingerprint
from ale_sglang.server_arguments import SERVER, list_arguments
from ale_testing.model_shapes import REFUSED, SHAPES, SWITCH, write_model
from ale_testing.served_models import ManyModels, Served, many_models

PYTHON = find_python("sglang", "cpu")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("sglang"),
    pytest.mark.skipif(
        PYTHON is None, reason="SGLang's environment is not installed: `ale engine install sglang --cpu`"
    ),
]
LIMITED = ("biases", "dynamic", "window", "windows of some layers")
"""What SGLang would compute otherwise without a word."""
COMMON = ("llama", "one KV head a head", "qwen2")
"""What the others have too, or the server of `test_replica.py`."""


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManyModels]:
    """The program in which models are served one after the other."""
    assert PYTHON is not None
    program = [str(Path(__file__).with_name("many_models.py")), str(SERVER.parent), "--device=cpu"]
    work = tmp_path_factory.mktemp("sglang")
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TMPDIR": str(work), "ALE_WORK": str(work)}
    with many_models(PYTHON, program, {**os.environ, **own}, work) as found:
        yield found


def serve(sglang: ManyModels, folders: list[Path], max_context: int) -> list[Served]:
    """Serve with the arguments that ALE gives."""
    model, nowhere = read_model_folder(folders[0], "sglang"), Path()
    launch = Launch(nowhere, model, "float32", False, max_context, 1, nowhere, nowhere)
    arguments = list_arguments(launch, ServerSettings(max_batch=8, threads=1))
    return sglang.serve(folders, max_context, arguments=arguments)


@pytest.mark.parametrize("name", [name for name in SHAPES if name not in REFUSED["sglang"] + COMMON])
def test_a_model_is_served_as_transformers_computes_it_also_after_an_update(
    name: str, sglang: ManyModels, tmp_path: Path
) -> None:
    folders = [write_model(name, tmp_path / str(seed), seed) for seed in range(2)]
    layout: dict[tuple[str, int], bool] = {}
    for served in serve(sglang, folders, SWITCH if name == "longrope" else 256):
        assert served.far < 1e-4
        model = read_model_folder(served.folder, "sglang")
        check_limits(model, 256)
        sent = fingerprint.of_folder(served.folder, "float32", model.tied)
        fingerprint.compare(sent, read_fingerprint([served.fingerprint]), "sglang", layout)
        assert sent.keys() == {name for name, _ in layout}
        assert all(layout.values())


@pytest.mark.parametrize("name", LIMITED)
def test_what_sglang_computes_otherwise_is_refused(name: str, sglang: ManyModels, tmp_path: Path) -> None:
    """That it does is tried too: a release that no longer does needs no refusal."""
    folder = write_model(name, tmp_path / "model")
    model = read_model_folder(folder, "sglang")
    with pytest.raises(ConfigError, match="SGLang would compute it otherwise than transformers"):
        check_limits(model, 256)
    (served,) = serve(sglang, [folder], model.max_context(256))
    assert served.far > 1e-2


@pytest.mark.parametrize("name", [name for name in REFUSED["sglang"] if name not in LIMITED])
def test_what_sglang_cannot_compute_ends_its_start_or_its_first_request(
    name: str, sglang: ManyModels, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError):
        serve(sglang, [write_model(name, tmp_path / "model")], 256)
