"""Replicas join and leave while a model is loaded: a run that goes on from a checkpoint loads several in a row."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ale.session.tokenizer import byte_tokenizer
from ale.specs.engine import Tokenizer

from .conftest import FakeReplica, ask, policy, pool_of, until


class SlowReplica(FakeReplica):
    """Loads a model when it is told to; at first, at once."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.models: list[Path | None] = []

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        assert not self.closes, "it has left"
        self.models.append(folder)
        await self.may_load.wait()
        await super().load_model(folder, tokenizer)


async def test_a_replica_leaves_once_it_has_loaded_although_no_other_one_serves_yet() -> None:
    first, second = SlowReplica("a"), SlowReplica("b")
    async with pool_of(first, second) as pool:
        for each in (first, second):
            each.may_load.clear()
        loading = asyncio.ensure_future(pool.load_model(Path("/m"), byte_tokenizer()))
        await until(lambda: len(first.models) == len(second.models) == 2)
        leaving = asyncio.ensure_future(pool.leave("b"))
        second.may_load.set()
        left = await asyncio.wait_for(leaving, 10)
        await left.close()
        first.may_load.set()
        await asyncio.wait_for(loading, 10)
        await pool.generate(ask())
        assert [replica.name for replica in pool.replicas] == ["a"]


async def test_a_replica_that_is_leaving_gets_no_model() -> None:
    first, second = SlowReplica("a"), SlowReplica("b")
    async with pool_of(first, second) as pool:
        second.others = 1  # what it generates for others has not ended
        leaving = asyncio.ensure_future(pool.leave("b"))
        await until(lambda: second.interruptions > 0)
        loading = asyncio.ensure_future(pool.load_model(Path("/m"), byte_tokenizer()))
        await until(lambda: first.models[-1] == Path("/m"))
        second.others = 0
        await (await asyncio.wait_for(leaving, 10)).close()
        await asyncio.wait_for(loading, 10)
        assert second.models == [None]
        await pool.generate(ask())


async def test_a_replica_that_joins_while_a_model_is_loaded_gets_that_one_too() -> None:
    first, joining = SlowReplica("a"), SlowReplica("b")
    async with pool_of(first) as pool:
        await pool.load_weights(policy(3))
        joining.may_load.clear()
        joined = asyncio.ensure_future(pool.join(joining))
        await until(lambda: joining.models == [None])
        await pool.load_model(Path("/m"), byte_tokenizer())
        joining.may_load.set()
        await asyncio.wait_for(joined, 10)
        assert joining.models == [None, Path("/m")]
        assert (joining.version, pool.version) == (0, 0)
