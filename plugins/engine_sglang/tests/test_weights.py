"""New weights for a real server of SGLang."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from pathlib import Path

import pytest

from ale.errors import EngineError
from ale.specs.engine import FolderTicket, GenerateRequest, Generation, MemoryTicket, PolicyVersion
from ale_sglang.replica import SglangReplica
from ale_testing.hugging_face import logprobs

from .conftest import request

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]
PROMPT = [9, 250, 31, 77, 120]


async def load(replica: SglangReplica, folder: Path, version: int) -> None:
    await replica.load_weights(PolicyVersion(version, FolderTicket(folder)))


async def test_an_update_changes_outputs_fingerprint_and_versions(
    replica: SglangReplica, folders: dict[int, Path]
) -> None:
    first, sums = await replica.generate(request(PROMPT)), await replica.ask_fingerprint()
    await load(replica, folders[1], 1)
    second = await replica.generate(request(PROMPT))
    assert (replica.version, set(first.versions), set(second.versions)) == (1, {0}, {1})
    assert first.token_ids != second.token_ids
    assert all(sums[name] != total for name, total in (await replica.ask_fingerprint()).items())
    for got in (first, second):
        wanted = logprobs(folders, PROMPT, got.token_ids, got.versions)
        assert got.logprobs == pytest.approx(wanted, abs=1e-3)


async def test_requests_go_on_with_new_weights_under_load(replica: SglangReplica, folders: dict[int, Path]) -> None:
    await load(replica, folders[0], 0)
    seeds, loaded = itertools.count(), asyncio.Event()
    made: list[tuple[GenerateRequest, Generation]] = []

    async def go_on() -> None:
        """Ask again and again until all is loaded, and once more."""
        last = False
        while not last:
            last, asked = loaded.is_set(), request(PROMPT, seed=next(seeds), max_tokens=120)
            made.append((asked, await replica.generate(asked)))

    tasks = [asyncio.ensure_future(go_on()) for _ in range(16)]
    while not made:  # noqa: ASYNC110 - a list, no event
        await asyncio.sleep(0.01)
    await load(replica, folders[1], 1)
    await load(replica, folders[2], 2)
    loaded.set()
    await asyncio.gather(*tasks)
    assert {0, 1, 2} >= {version for _, got in made for version in got.versions} >= {0, 2}
    for asked, got in made:
        assert list(got.versions) == sorted(got.versions)
        wanted = logprobs(folders, asked.token_ids, got.token_ids, got.versions)
        assert got.logprobs == pytest.approx(wanted, abs=1e-3)


async def test_weights_come_from_memory(replica: SglangReplica, folders: dict[int, Path]) -> None:
    from safetensors.torch import load_file

    await replica.load_weights(PolicyVersion(1, MemoryTicket(load_file(folders[1] / "model.safetensors"))))
    got = await replica.generate(request(PROMPT))
    assert got.logprobs == pytest.approx(logprobs(folders, PROMPT, got.token_ids, got.versions), abs=1e-3)
    assert replica.launch is not None
    assert not [*replica.launch.weights.iterdir()]


async def test_a_paused_server_stays_paused_while_it_loads(replica: SglangReplica, folders: dict[int, Path]) -> None:
    await replica.pause()
    task = asyncio.ensure_future(replica.generate(request(PROMPT)))
    await load(replica, folders[2], 2)
    assert not task.done()
    await replica.resume()
    assert set((await task).versions) == {2}


async def test_weights_of_another_model_change_nothing(
    replica: SglangReplica, folders: dict[int, Path], tmp_path: Path
) -> None:
    await load(replica, folders[0], 0)
    before = await replica.ask_fingerprint()
    with pytest.raises(EngineError):
        await load(replica, tmp_path, 1)
    assert (replica.version, await replica.ask_fingerprint()) == (0, before)
    await replica.check()


async def test_a_server_that_says_yes_and_serves_old_weights_is_an_error(
    replica: SglangReplica, folders: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    await load(replica, folders[0], 0)
    send = replica.send_folder

    async def send_another(folder: Path, version: int) -> None:
        await send(folders[0], version)

    monkeypatch.setattr(replica, "send_folder", send_another)
    with pytest.raises(EngineError, match=r"serves others: .*embed_tokens"):
        await load(replica, folders[1], 1)
    with pytest.raises(EngineError, match="must be started again"):
        await replica.check()
    monkeypatch.undo()
    await load(replica, folders[1], 1)
    await replica.check()


async def test_a_folder_may_vanish_after_it_was_loaded(
    replica: SglangReplica, folders: dict[int, Path], tmp_path: Path
) -> None:
    copy = shutil.copytree(folders[2], tmp_path / "copy")
    await load(replica, copy, 2)
    shutil.rmtree(copy)
    got = await replica.generate(request(PROMPT))
    assert got.logprobs == pytest.approx(logprobs(folders, PROMPT, got.token_ids, got.versions), abs=1e-3)
