"""A server of vLLM that somebody else has started, named by its URL."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ports import held_port

from ale.errors import EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, MemoryTicket, PolicyVersion
from ale_engines.server.process import ServerProcess
from ale_engines.server.python_environments import find_python
from ale_vllm import VllmEngine
from ale_vllm.server_arguments import SERVER

from .conftest import ModelOf, logprobs_of, request

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(
        find_python("vllm", "cpu") is None,
        reason="vLLM's environment is not installed: `ale engine install vllm --cpu`",
    ),
]
PROMPT = (3, 4, 5, 6)


@pytest.fixture
def port() -> Iterator[int]:
    """A port for a server that takes long to start; nobody else gets it meanwhile."""
    with held_port() as port:
        yield port


def start_server(folder: Path, port: int, log: Path) -> ServerProcess:
    """The command that ALE names for a server without its routes, on a small CPU."""
    arguments = f"--model {folder} --port {port} --dtype float32 --max-model-len 256 --kv-cache-memory-bytes 67108864"
    temporary = tempfile.mkdtemp()  # its path is short enough for sockets
    own = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TMPDIR": temporary}
    own |= {"TORCH_COMPILE_DISABLE": "1"}  # as those that ALE starts on a CPU
    argv = [
        str(find_python("vllm", "cpu")),
        str(SERVER),
        *arguments.split(),
        "--enforce-eager",
        "--skip-tokenizer-init",
    ]
    return ServerProcess(argv, {**os.environ, **own}, log, "vLLM by hand", [Path(temporary)])


async def test_a_server_at_a_url_serves_the_weights_of_each_run_and_outlives_them(
    model_of: ModelOf, tmp_path: Path, port: int
) -> None:
    async with start_server(model_of(True, 0), port, tmp_path / "log") as process:
        config = VllmEngine.Config(url=f"http://127.0.0.1:{port}", max_context=256, dtype="float32", device="cpu")
        # The first run finds the model that the server has, the second one another: it loads its own.
        for first, then in ((0, 1), (2, 0)):
            async with VllmEngine(config, DriverContext()) as engine:
                await engine.load_model(model_of(True, first), byte_tokenizer())  # it waits for the server
                assert engine.transports == ("folder",)
                for version, seed in ((0, first), (1, then)):
                    if version:
                        await engine.load_weights(PolicyVersion(version, FolderTicket(model_of(True, seed))))
                    made = await engine.generate(request(PROMPT))
                    assert set(made.versions) == {version}
                    expected = logprobs_of(model_of(True, seed), PROMPT, made)
                    assert list(made.logprobs) == pytest.approx(expected, abs=1e-3)
                with pytest.raises(EngineError, match="weights by folder"):
                    await engine.load_weights(PolicyVersion(2, MemoryTicket({})))
                await engine.pause()  # and goes away: the next run finds it paused
            assert process.running
        for settings, words in (
            ({"dtype": "bfloat16"}, r"engine\.dtype"),
            ({"max_context": 257}, r"max_context to 256"),
        ):
            async with VllmEngine(config.model_copy(update=settings), DriverContext()) as engine:
                with pytest.raises(EngineError, match=words):
                    await engine.load_model(model_of(True, 0), byte_tokenizer())
