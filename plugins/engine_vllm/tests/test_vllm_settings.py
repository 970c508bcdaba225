"""What is refused before vLLM is started, or as soon as it answers: each by a sentence."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from aiohttp import web

from ale.errors import ConfigError, EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale_engines.server.settings import ServerSettings
from ale_vllm import VllmEngine
from ale_vllm.replica import VllmReplica, choose_transports

from .conftest import ModelOf, make_model


def make(**settings: object) -> VllmReplica:
    return VllmReplica(ServerSettings(device="cpu", **settings), DriverContext())  # type: ignore[arg-type]


def write_program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


async def test_a_python_that_is_not_there_is_named(model_of: ModelOf, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.python: there is no"):
        await make(python=tmp_path / "python").load_model(model_of(True, 0), byte_tokenizer())


async def test_without_an_environment_the_command_that_makes_one_is_named(
    model_of: ModelOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="ale engine install vllm"):
        await make().load_model(model_of(True, 0), byte_tokenizer())
    with pytest.raises(ConfigError, match="ale engine install vllm"):  # a run starts its engine before anything is made
        await VllmEngine(VllmEngine.Config(device="cpu"), DriverContext()).start()


async def test_a_server_that_ends_at_once_is_reported_with_its_log_and_leaves_nothing(
    model_of: ModelOf, tmp_path: Path
) -> None:
    python = write_program(tmp_path / "python", "echo the model is too large; exit 3")
    replica = make(python=python)
    with pytest.raises(EngineError, match=r"(?s)vllm 0 ended with exit status 3.*the model is too large"):
        await replica.load_model(model_of(True, 0), byte_tokenizer())
    assert replica.launch is None
    with pytest.raises(EngineError, match="has not been started"):
        await replica.check()
    await replica.close()


async def test_a_server_that_does_not_get_ready_in_time_is_ended(model_of: ModelOf, tmp_path: Path) -> None:
    python = write_program(tmp_path / "python", "echo still loading; exec sleep 100")
    replica = make(python=python, start_timeout_s=0.5)
    with pytest.raises(EngineError, match=r"(?s)within 0.5 s \(engine.start_timeout_s\).*still loading"):
        await replica.load_model(model_of(True, 0), byte_tokenizer())
    assert replica.process is None
    await replica.close()


async def test_a_model_that_vllm_cannot_compute_on_a_cpu_is_refused(tmp_path: Path) -> None:
    make_model(tied=True, hidden_size=32).save_pretrained(tmp_path / "model")
    python = write_program(tmp_path / "python", "exit 1")
    async with make(python=python) as replica:
        with pytest.raises(ConfigError, match="attention heads of size 8"):
            await replica.load_model(tmp_path / "model", byte_tokenizer())


@pytest.mark.parametrize(
    ("release", "words"),
    [("0.27.1", "release 0.27.1, but this plugin was made for 0.32"), (None, "a server without ALE's routes")],
)
async def test_another_server_at_a_url_is_refused(model_of: ModelOf, release: str | None, words: str) -> None:
    async def info(request: web.Request) -> web.Response:
        return web.json_response({"release": release})

    app = web.Application()
    if release:
        app.router.add_post("/ale/info", info)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with make(url=url) as replica:
            with pytest.raises(EngineError, match=words):
                await replica.load_model(model_of(True, 0), byte_tokenizer())
    finally:
        await runner.cleanup()


def test_a_url_and_a_python_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="not both"):
        VllmEngine.Config(python=Path("python"), url="http://localhost")
    with pytest.raises(ValueError, match="leave `replicas` at 1"):
        VllmEngine.Config(url="http://localhost", replicas=2)
    with pytest.raises(ValueError, match="not other:8000"):
        VllmEngine.Config(url=["http://localhost", "other:8000"])
    with pytest.raises(ValueError, match="names a server twice"):
        VllmEngine.Config(url=["http://localhost", "http://localhost"])


def test_several_addresses_are_several_replicas() -> None:
    engine = VllmEngine(VllmEngine.Config(url=["http://a:8000", "http://b:8000"]), DriverContext())
    assert [replica.url for replica in engine.replicas] == ["http://a:8000", "http://b:8000"]
    assert engine.transports == ("folder",)


def test_the_plugin_makes_as_many_replicas_as_the_settings_say() -> None:
    engine = VllmEngine(VllmEngine.Config(replicas=3, device="cpu"), DriverContext())
    assert [replica.name for replica in engine.replicas] == ["vllm 0", "vllm 1", "vllm 2"]
    assert engine.transports == ("memory", "folder")


@pytest.mark.parametrize(
    ("cuda", "settings", "transport"),
    [
        (False, {}, "memory"),
        (True, {}, "ipc"),
        (True, {"tensor_parallel": 2}, "nccl"),
        (True, {"environment": {"CUDA_VISIBLE_DEVICES": "1"}}, "nccl"),
    ],
)
def test_weights_come_by_the_shortest_way_that_works(cuda: bool, settings: dict[str, object], transport: str) -> None:
    names = choose_transports(cuda, ServerSettings(**settings))  # type: ignore[arg-type]
    assert names[0] == transport
    assert "folder" in names
