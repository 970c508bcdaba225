"""A server of SGLang that somebody else has started, named by its URL."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ports import held_port

from ale.errors import EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, PolicyVersion
from ale_engines.server.process import ServerProcess
from ale_engines.server.python_environments import find_python
from ale_engines.server.settings import ServerSettings
from ale_sglang import SglangEngine
from ale_sglang.server_arguments import RESERVE, SERVER

from .conftest import CONTEXT, request

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def port() -> Iterator[int]:
    """A port for a server that takes long to start; nobody else gets it meanwhile."""
    with held_port() as port:
        yield port


def start_server(folder: Path, port: int, log: Path) -> ServerProcess:
    """The command that ALE names for a server without its fingerprint, on a small CPU; with a backend for sampling that
    takes no seeds, as GPUs have it by default."""
    arguments = (
        f"--model-path {folder} --port {port} --weight-version 0 --device=cpu --dtype float32 --max-total-tokens 4096 "
        f"--context-length {CONTEXT + RESERVE} --sampling-backend flashinfer --attention-backend torch_native "
        "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled --disable-overlap-schedule "
        "--skip-tokenizer-init --skip-server-warmup --sleep-on-idle --enable-metrics"
    )
    argv = [str(find_python("sglang", "cpu")), str(SERVER), *arguments.split()]
    # SGLang leaves its counters in shared memory for ever; the launcher puts them into this folder.
    own = {"OMP_NUM_THREADS": "1", "TMPDIR": str(log.parent), "ALE_WORK": str(log.parent)}
    semaphores = Path("/dev/shm") / f"*{log.parent.name}-*"
    return ServerProcess(argv, {**os.environ, **own}, log, "SGLang by hand", [semaphores])


async def test_a_server_at_a_url_serves_the_weights_of_each_run_and_outlives_them(
    settings: ServerSettings, folders: dict[int, Path], tmp_path: Path, port: int
) -> None:
    async with start_server(folders[0], port, tmp_path / "log") as process:
        config = settings.model_copy(update={"url": f"http://127.0.0.1:{port}"})
        greedy: dict[int, tuple[int, ...]] = {}
        for first, then in ((0, 1), (1, 0)):
            async with SglangEngine(config, DriverContext(seed=1)) as engine:
                await engine.load_model(folders[first], byte_tokenizer())  # it waits for the server
                for version, seed in ((0, first), (1, then)):
                    if version:
                        await engine.load_weights(PolicyVersion(version, FolderTicket(folders[seed])))
                    made = await engine.generate(request([1, 2, 3], temperature=0.0))
                    assert set(made.versions) == {version}
                    assert greedy.setdefault(seed, made.token_ids) == made.token_ids
                await engine.pause()  # and goes away: the next run finds it paused
            assert process.running
        assert greedy[0] != greedy[1]
        async with SglangEngine(config.model_copy(update={"dtype": "bfloat16"}), DriverContext(seed=1)) as engine:
            with pytest.raises(EngineError, match=r"engine\.dtype"):
                await engine.load_model(folders[0], byte_tokenizer())
        info = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{config.url}/server_info").read())
        assert b'"sampling_backend":"pytorch"' in info
