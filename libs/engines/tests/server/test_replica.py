"""A server that ALE starts, or finds at a URL: waited for, compared with the settings, and given up only when it is
dead. The server is in the replica itself; where it needs a process, that sleeps."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from ale.errors import ConfigError, EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, GenerateRequest, Generation, PolicyVersion, Sampling
from ale_engines.pool.continuation import NOTHING
from ale_engines.server import replica as replica_module
from ale_engines.server.http_client import ConnectionLost, NoAnswer, ServerClient
from ale_engines.server.launch import Launch, ServerSetup
from ale_engines.server.replica import ServerReplica
from ale_engines.server.sampled_tokens import Sampled
from ale_engines.server.settings import ServerSettings
from ale_engines.weights import fingerprint
from ale_engines.weights.tensor_files import StoredTensor, write_file
from ale_testing.recording_channel import RecordingChannel


class Crate(ServerReplica):
    """A replica of a server that is not there for its first `silent` questions, and holds the folder `holds`."""

    server, versions = "crate", ("1.0", "2.0")
    silent = 0
    setup = ServerSetup("float32", 100)
    holds: Path | None = None
    calls: tuple[str, ...] = ()
    seen: tuple[Generation, ...] = ()
    """What it knew of its last request before that had ended."""
    reports: Mapping[str, float] | Exception = {}  # noqa: RUF012 - tests set their own

    def find_python(self, device: str) -> Path | None:
        return None

    def make_argv(self, launch: Launch) -> list[str]:
        return [str(launch.python)]

    def make_client(self, launch: Launch) -> ServerClient:
        return ServerClient(self.name, "http://localhost", launch.work / "socket")

    async def ask_release(self) -> str:
        self.silent -= 1
        if self.silent >= 0:
            raise ConnectionLost(f"{self.name} cannot be reached.")
        return "1.5"

    async def ask_setup(self) -> ServerSetup:
        return self.setup

    async def sample(self, request: GenerateRequest, max_tokens: int, request_id: str, sampled: Sampled) -> str:
        self.calls += (request_id,)
        sampled.add((5, 6), (-0.5, -1.5), (0, 0))
        self.seen = self.sampled_so_far(request), self.sampled_so_far(request, after=1)
        return "length"

    async def abort(self, request_ids: list[str]) -> None:
        raise NotImplementedError

    async def send_folder(self, folder: Path, version: int) -> None:
        self.calls += ("load",)
        self.holds = folder

    async def ask_fingerprint(self) -> fingerprint.Fingerprint:
        assert self.holds is not None
        return fingerprint.of_folder(self.holds, self.setup.dtype, tied=True)

    async def ask_metrics(self) -> dict[str, float]:
        if isinstance(self.reports, Exception):
            raise self.reports
        return dict(self.reports)

    async def pause(self) -> None:
        raise NotImplementedError

    async def resume(self) -> None:
        self.calls += ("resume",)


def write_model(folder: Path, value: float) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": True, "max_position_embeddings": 200}))
    write_file(folder / "model.safetensors", {"a": StoredTensor("F32", np.full((3, 5), value, dtype=np.float32))})
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", 0.123456789)


def crate(number: int = 0, channel: RecordingChannel | None = None, **settings: object) -> Crate:
    given = {"url": ["http://127.0.0.1:9", "http://127.0.0.1:10"], "max_context": 100, "device": "cpu", **settings}
    context = DriverContext(seed=3, channel=channel or RecordingChannel())
    return Crate(ServerSettings.model_validate(given), context, number)


def started(python: Path, program: str = "#!/bin/sh\nexec sleep 100\n") -> Crate:
    """A replica whose server is a process, which sleeps."""
    python.write_text(program)
    python.chmod(0o700)
    return crate(url="", python=python)


WRITER = f"""#!{sys.executable}
import socket, tempfile, time, uuid
tempfile.NamedTemporaryFile(delete=False)
tempfile.mkdtemp()
socket.socket(socket.AF_UNIX).bind(f"{{tempfile.gettempdir()}}/{{uuid.uuid4()}}")
print("written", flush=True)
time.sleep(100)
"""
"""It leaves what servers leave."""
OWNER = """
import asyncio, sys
from pathlib import Path
from test_replica import WRITER, start_writing, started
async def main():
    folder = Path(sys.argv[1])
    async with started(folder / "python", WRITER) as replica:
        print(await start_writing(replica, folder / "model"), flush=True)
        await asyncio.sleep(100)
asyncio.run(main())
"""


def anything_left(work: Path, temporary: Path) -> bool:
    """Whether a server's folder is there, or anything in the one for temporary files."""
    return work.exists() or any(temporary.iterdir())


async def start_writing(replica: Crate, model: Path) -> Path:
    """Start a replica's `WRITER`, and return the folder into which it has written its temporary files."""
    replica.holds = model
    await replica.load_model(model, byte_tokenizer())
    assert replica.process is not None
    assert replica.launch is not None
    while "written" not in replica.process.log_tail():
        assert replica.process.running, replica.process.log_tail()
        await asyncio.sleep(0.02)
    return replica.launch.work


async def test_a_server_at_a_url_is_waited_for_at_the_start_and_after_a_loss(model: Path) -> None:
    channel = RecordingChannel()
    async with crate(channel=channel) as replica:
        replica.silent = 3
        await replica.load_model(model, byte_tokenizer())
        replica.silent = 3
        await replica.restart()
        await replica.check()
    assert channel.events == [("note", {"text": "crate 0 cannot be reached. It is waited for, up to 600 s."})] * 2


async def test_a_server_that_ends_its_start_is_named_with_the_model(model: Path, tmp_path: Path) -> None:
    async with started(tmp_path / "python", "#!/bin/sh\necho no such layer\nexit 3\n") as replica:
        replica.silent = 1000
        with pytest.raises(
            EngineError, match=rf"could not be started with the model in {model};.*(?s:status 3.*no such)"
        ):
            await replica.load_model(model, byte_tokenizer())


async def test_a_model_that_a_server_cannot_compute_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sample(*_: object) -> str:
        raise EngineError("no such kernel")

    async with started(tmp_path / "python") as replica:
        replica.holds = model
        monkeypatch.setattr(replica, "sample", sample)
        with pytest.raises(
            ConfigError, match=rf"has loaded the model in {model} .* cannot compute it.* no such kernel"
        ):
            await replica.load_model(model, byte_tokenizer())
        assert replica.process is None


async def test_a_server_at_a_url_that_never_answers_is_named_with_the_setting(model: Path) -> None:
    async with crate(start_timeout_s=0.3) as replica:
        replica.silent = 1000
        with pytest.raises(EngineError, match=r"within 0.3 s \(engine\.start_timeout_s\)\. crate 0 cannot be reached"):
            await replica.load_model(model, byte_tokenizer())


async def test_a_server_at_a_url_that_was_left_paused_goes_on_with_the_weights_of_the_run(model: Path) -> None:
    async with crate() as replica:
        await replica.load_model(model, byte_tokenizer())
        assert replica.calls == ("load", "resume")


async def test_a_server_at_a_url_has_the_dtype_and_the_context_of_the_settings(model: Path, tmp_path: Path) -> None:
    async with crate(dtype="bfloat16") as replica:
        with pytest.raises(EngineError, match=r"weights in float32, but engine\.dtype is bfloat16\. Set engine\.dtype"):
            await replica.load_model(model, byte_tokenizer())
    async with crate(max_context=101) as replica:
        with pytest.raises(EngineError, match=r"requests of 100 tokens, and a context of 101 .* engine\.max_context"):
            await replica.load_model(model, byte_tokenizer())
    async with crate() as replica:  # `auto` is the server's
        replica.setup = ServerSetup("bfloat16", 100)
        await replica.load_model(model, byte_tokenizer())
        await replica.load_weights(PolicyVersion(1, FolderTicket(write_model(tmp_path / "new", 2.7))))
        assert replica.version == 1


async def test_the_weights_of_a_server_are_compared_when_it_has_started(model: Path, tmp_path: Path) -> None:
    async with started(tmp_path / "python") as replica:
        replica.holds = write_model(tmp_path / "other", 0.5)
        with pytest.raises(EngineError, match="says that it loaded the weights, but it serves others: a differ"):
            await replica.load_model(model, byte_tokenizer())
        assert replica.process is None
        replica.holds = model
        await replica.load_model(model, byte_tokenizer())
        await replica.check()


async def test_a_busy_server_that_is_slow_is_alive_until_it_was_silent_for_long(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path / "python") as replica:
        replica.holds = model
        await replica.load_model(model, byte_tokenizer())
        replica.reports = NoAnswer("crate 0 did not answer /metrics within 3 s.")
        with pytest.raises(EngineError, match="did not answer"):
            await replica.check()
        replica._running["a request"] = GenerateRequest((1,), Sampling()), Sampled("it")
        await replica.check()
        with monkeypatch.context() as patch:
            patch.setattr(replica_module, "SILENCE_S", 0.0)
            with pytest.raises(EngineError, match="did not answer"):
                await replica.check()
        replica.reports = ConnectionLost("crate 0 cannot be reached.")
        with pytest.raises(EngineError, match="cannot be reached"):
            await replica.check()
        replica.reports = NoAnswer("crate 0 did not answer /metrics within 3 s.")
        assert replica.process is not None
        await replica.process.close()
        with pytest.raises(EngineError, match="crate 0 was ended by signal 15"):
            await replica.check()


@pytest.mark.parametrize("parent", ["short", "long" * 20], ids=["short", "long"])
async def test_a_servers_temporary_files_vanish_with_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str
) -> None:
    (tmp_path / parent).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / parent))
    async with started(tmp_path / "python", WRITER) as replica:
        work = await start_writing(replica, model)
        assert len(os.listdir(work)) == 3
    assert not anything_left(work, tmp_path / parent)


async def test_a_servers_temporary_files_vanish_when_its_owner_is_killed(model: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(tmp_path / "own")}
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(tmp_path), env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    work = Path((await owner.stdout.readline()).decode().strip())
    assert len(os.listdir(work)) == 3
    owner.kill()
    await owner.wait()
    async with asyncio.timeout(60):
        while anything_left(work, tmp_path / "own"):  # noqa: ASYNC110 - folders, not an event
            await asyncio.sleep(0.02)


async def test_the_metrics_of_a_server_end_with_it_and_its_counters_go_on(model: Path) -> None:
    async with crate() as replica:
        await replica.load_model(model, byte_tokenizer())
        replica.reports = {"server_cache_use": 0.9, "server_sampled_tokens": 50.0}
        await replica.check()
        assert (replica.metrics()["server_cache_use"], replica.metrics()["server_sampled_tokens"]) == (0.9, 50)
        await replica.restart()
        assert "server_cache_use" not in replica.metrics()
        assert replica.metrics()["server_sampled_tokens"] == 50
        replica.reports = {"server_cache_use": 0.1, "server_sampled_tokens": 7.0}
        for _ in range(2):
            await replica.check()
            assert (replica.metrics()["server_cache_use"], replica.metrics()["server_sampled_tokens"]) == (0.1, 57)
        replica.reports = {}  # the first answer of a server that starts
        await replica.check()
        assert replica.metrics()["server_sampled_tokens"] == 57


async def test_requests_of_two_owners_of_a_server_have_different_names(model: Path) -> None:
    asked = GenerateRequest((1, 2), Sampling(max_tokens=3))
    async with crate() as mine, crate() as yours:
        for replica in (mine, yours):
            await replica.load_model(model, byte_tokenizer())
            await replica.generate(asked)
            await replica.generate(asked)
            whole = Generation((5, 6), (-0.5, -1.5), (0, 0), "length")
            assert replica.seen == (whole, Generation((6,), (-1.5,), (0,), "length"))
            assert replica.sampled_so_far(asked) == NOTHING, "it has ended"
        assert len({*mine.calls[2:], *yours.calls[2:]}) == 4


def test_requests_without_a_seed_get_those_of_the_run_and_the_replica() -> None:
    seeds = {(number, i): crate(number).choose_seed(Sampling()) for number in (0, 1) for i in (0, 1)}
    assert seeds[0, 0] == seeds[0, 1] != seeds[1, 0] == seeds[1, 1]
    replica = crate()
    assert len({replica.choose_seed(Sampling()) for _ in range(5)}) == 5
    assert replica.choose_seed(Sampling(seed=2**63 + 5)) == 5
