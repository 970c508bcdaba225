"""Refused connections of a sandbox are kept for followers, which ask for those after a number."""

from __future__ import annotations

import json

import pytest

from .conftest import Worker

pytestmark = pytest.mark.bwrap


async def test_refused_connections_come_in_their_order_until_the_sandbox_ends(worker: Worker) -> None:
    box = await worker.create(network="allow", allow=["example.org:80"])
    follow = f"/sandboxes/{box}/refusals"
    async with worker.client.stream("GET", follow) as first:
        lines = first.aiter_lines()
        for port in (81, 82):
            command = {"command": f"bash -c ': < /dev/tcp/192.0.2.1/{port}'"}
            await worker.client.post(f"/sandboxes/{box}/exec", json=command)
            refused = json.loads(await anext(lines))
            assert (refused["protocol"], refused["host"], refused["port"]) == ("tcp", "192.0.2.1", port)
        async with worker.client.stream("GET", follow, params={"after": 1}) as later:
            lines_later = later.aiter_lines()
            assert json.loads(await anext(lines_later)) == refused
            assert (await worker.client.delete(f"/sandboxes/{box}")).status_code == 200
            assert [json.loads(line) async for line in lines_later] == [None]
        assert [json.loads(line) async for line in lines] == [None]
    assert (await worker.client.get(follow)).json()["detail"].startswith(f"The sandbox {box} does not run")
    assert (await worker.client.get(follow, params={"after": "x"})).status_code >= 400
