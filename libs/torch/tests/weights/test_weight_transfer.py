"""Weights reach the processes of a server without files; the receiver's file alone is enough there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ale.errors import TrainerError  # noqa: E402
from ale_torch.weights import BroadcastTicket, checksums, receiver  # noqa: E402
from ale_torch.weights.sender import WeightSender, share_by_ipc  # noqa: E402

RANK = """
import importlib.util, json, sys, torch
spec = importlib.util.spec_from_file_location("receiver", sys.argv[1])
receiver = importlib.util.module_from_spec(spec)
spec.loader.exec_module(receiver)
for line in sys.stdin:
    request = json.loads(line)
    stop = request.pop("stop", None)
    try:
        got = {}
        for name, value in receiver.receive(int(sys.argv[2]), torch.device("cpu"), **request):
            got[name] = [str(value.dtype), list(value.shape), value.double().sum().item()]
            if name == stop:
                sys.exit(1)
        print(json.dumps(got), flush=True)
    except RuntimeError as error:
        print(json.dumps(str(error)), flush=True)
assert not any(name.split(".")[0] == "ale" for name in sys.modules)
"""
WEIGHTS = {
    "embed": torch.arange(12.0).reshape(3, 4),
    "layer": torch.randn(300, 40, dtype=torch.bfloat16),
    "norm": torch.ones(5, dtype=torch.float16),
}


class Server:
    """A server's ranks, each a process that has torch and the receiver's file."""

    def __init__(self, size: int, group: str) -> None:
        self.size, self.group = size, group
        command = [sys.executable, "-c", RANK, receiver.__file__]
        pipe = subprocess.PIPE
        self.ranks = [
            subprocess.Popen([*command, str(rank)], stdin=pipe, stdout=pipe, text=True, cwd=Path("/"))
            for rank in range(size)
        ]

    def ask(self, ticket: BroadcastTicket, **more: str) -> list[object]:
        """What each rank answers."""
        request = {**ticket.as_request(self.group, self.size), **more}
        for process in self.ranks:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline() or "null") for process in self.ranks if process.stdout is not None]

    def close(self) -> None:
        """End the ranks; they leave without an error."""
        for process in self.ranks:
            process.communicate()


@contextmanager
def sending(host: str = "127.0.0.1") -> Iterator[WeightSender]:
    """A sender by gloo, closed at the end."""
    sender = WeightSender("gloo", host)
    try:
        yield sender
    finally:
        sender.close()


def described(weights: dict[str, torch.Tensor]) -> dict[str, list[object]]:
    """What a rank says of these weights."""
    return {n: [str(t.dtype), list(t.shape), t.double().sum().item()] for n, t in weights.items()}


def test_each_rank_of_each_server_gets_the_version_that_it_asks_for() -> None:
    newer = {name: value + 1 for name, value in WEIGHTS.items()}
    with sending() as sender:
        two, one = Server(2, "two"), Server(1, "one")
        first = sender.offer(1, WEIGHTS)
        assert two.ask(first) == [described(WEIGHTS)] * 2
        second = sender.offer(2, newer)
        assert two.ask(second) == [described(newer)] * 2
        assert one.ask(first) == [described(WEIGHTS)]
        assert two.ask(second) == [described(newer)] * 2, "a version can be asked for again"
        sender.offer(3, WEIGHTS)
        assert one.ask(first) == ["the trainer does not send version 1: it has the versions 2, 3, by gloo"]
        two.close()
        one.close()


def test_a_server_that_dies_while_it_receives_does_not_hinder_others() -> None:
    with sending() as sender:
        ticket = sender.offer(1, WEIGHTS)
        dying, other = Server(1, "dying"), Server(1, "other")
        assert dying.ask(ticket, stop="embed") == [None]
        assert other.ask(ticket) == [described(WEIGHTS)]
        again = Server(1, "again")
        assert again.ask(ticket) == [described(WEIGHTS)]
        for server in (other, again, dying):
            server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of this machine")
def test_weights_come_from_the_address_that_the_ticket_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none")  # on several nodes neither a name nor `lo` tells the network
    with sending("127.0.0.2") as sender:
        ticket = sender.offer(1, WEIGHTS)
        server = Server(2, "two")
        assert ticket.host == "127.0.0.2"
        assert server.ask(ticket) == [described(WEIGHTS)] * 2
        server.close()


@pytest.mark.parametrize("chunk", [7, 2**18])
def test_a_ticket_has_the_sums_of_what_the_trainer_sends_in_each_dtype_of_a_server(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(checksums.CHUNK, "cpu", chunk)
    weights = {**WEIGHTS, "empty": torch.ones(0, 3), "across": torch.randn(4, 6).T, "three": torch.randn(3, 4, 5)}
    with sending() as sender:
        ticket = sender.offer(1, weights)
    for dtype, integer in (("float32", torch.int32), ("bfloat16", torch.int16), ("float16", torch.int16)):
        cast = {name: tensor.to(getattr(torch, dtype)).contiguous() for name, tensor in weights.items()}
        wanted = {name: summed(tensor.view(integer).to(torch.int64)) for name, tensor in cast.items()}
        assert ticket.sums[dtype] == wanted


def summed(bits: torch.Tensor) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """The shape, the sum, and for each dimension the sum of the values times their position."""
    places = torch.meshgrid(*(torch.arange(size) for size in bits.shape), indexing="ij")
    return tuple(bits.shape), int(bits.sum()) % 2**64, tuple(int((bits * place).sum()) % 2**64 for place in places)


def test_memory_of_the_cpu_is_not_shared_by_ipc() -> None:
    with pytest.raises(TrainerError, match="the trainer computes on the CPU"):
        share_by_ipc(1, WEIGHTS)
