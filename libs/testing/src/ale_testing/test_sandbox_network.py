"""These tests check what network policies between none and full allow and refuse, and that refusals are reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from ale.specs.sandbox import Sandbox, SandboxProvider, SandboxSpec
from ale_testing.async_tests import async_test
from ale_testing.plugin_under_test import Subject
from ale_testing.recording_channel import RecordingChannel
from ale_testing.sandbox_setup import addresses_of_this_host

needs = pytest.mark.ale_needs.with_args
GREETING = b"hello from the host\n"


class Service:
    """A service of the host that greets whoever comes; it knows how many came."""

    def __init__(self) -> None:
        self.visits = 0
        self.port = 0

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        writer.write(GREETING)
        writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        """Serves on all addresses of the host."""
        server = await asyncio.start_server(self._greet, "0.0.0.0", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


@asynccontextmanager
async def sandbox(subject: Subject, spec: SandboxSpec) -> AsyncIterator[tuple[SandboxProvider, Sandbox, list[Any]]]:
    """A sandbox, its provider, and the events that the provider puts into the run's store."""
    channel = RecordingChannel()
    provider = subject.build()
    provider.context = replace(provider.context, channel=channel)
    async with provider, await provider.start_sandbox(spec) as box:
        yield provider, box, channel.events


async def visit(box: Sandbox, host: str, port: int) -> bytes:
    """What a program in the sandbox hears from a service."""
    tools = f"exec 3<>/dev/tcp/{host}/{port} && head -n 1 <&3"
    done = await box.exec(f"bash -c '{tools}' || nc -w 2 {host} {port} </dev/null", timeout_s=10)
    return done.stdout


async def refusal_event(events: list[Any], **wanted: Any) -> dict[str, Any]:
    """The event of a refused attempt, awaited for a moment."""
    for _ in range(100):
        for kind, data in events:
            if kind == "network_refused" and all(data.get(name) == value for name, value in wanted.items()):
                return dict(data)
        await asyncio.sleep(0.05)
    raise AssertionError(f"a refused attempt must be an event, channel.event('network_refused', ...): {wanted}")


@needs("network_endpoint")
@async_test
async def test_the_endpoint_is_reached_and_nothing_else(subject: Subject) -> None:
    async with Service().running() as endpoint, Service().running() as other:
        spec = SandboxSpec(network="endpoint-only", endpoint=f"http://127.0.0.1:{endpoint.port}")
        async with sandbox(subject, spec) as (provider, box, _):
            if "network_endpoint" not in provider.capabilities:
                return  # narrowed by start(): this machine does not give it, and the provider says so
            assert box.endpoint_url is not None, "endpoint_url must say where the endpoint is inside"
            host, port = box.endpoint_url.removeprefix("http://").split(":")
            assert await visit(box, host, int(port)) == GREETING, "programs must reach the endpoint at endpoint_url"
            for address in ("127.0.0.1", *addresses_of_this_host()):
                for service in (endpoint, other):
                    await visit(box, address, service.port)
            assert other.visits == 0, "endpoint-only must let nothing but the endpoint through"
            assert endpoint.visits == 1, (
                "the endpoint must be reached at endpoint_url alone, not by the host's addresses"
            )
            await box.kill_agent_processes()
            assert await visit(box, host, int(port)) == GREETING, (
                "the endpoint must be there after kill_agent_processes"
            )


@needs("egress_policy")
@async_test
async def test_allowed_hosts_are_reached_and_others_are_refused_and_reported(subject: Subject) -> None:
    async with Service().running() as wanted, Service().running() as other:
        spec = SandboxSpec(network="allow", allow=(f"127.0.0.1:{wanted.port}",), labels={"task": "t-1"})
        async with sandbox(subject, spec) as (provider, box, events):
            if "egress_policy" not in provider.capabilities:
                return
            assert await visit(box, "127.0.0.1", wanted.port) == GREETING, "an allowed host and port must be reached"
            for address in addresses_of_this_host():
                for service in (wanted, other):
                    await visit(box, address, service.port)
                event = await refusal_event(events, protocol="tcp", host=address, port=other.port)
                assert event["sandbox"] == box.id, "the event must name the sandbox"
                assert event["labels"].get("task") == "t-1", (
                    "the event must carry the sandbox's labels, the task among them"
                )
            await visit(box, "127.0.0.1", other.port)
            await visit(box, "name.invalid", wanted.port)
            await refusal_event(events, protocol="name", host="name.invalid")
            await visit(box, "169.254.169.254", 80)
            await refusal_event(events, protocol="tcp", host="169.254.169.254", port=80)
            assert other.visits == 0, "a host that is not allowed must not be reached"
            assert wanted.visits == 1, "an allowed address is that address, and no other of the same machine"


@needs("egress_policy")
@async_test
async def test_a_pattern_leads_to_public_hosts_and_never_to_this_one(subject: Subject) -> None:
    async with (
        Service().running() as service,
        sandbox(subject, SandboxSpec(network="allow", allow=(f"*:{service.port}",))) as (provider, box, events),
    ):
        if "egress_policy" not in provider.capabilities:
            return
        for address in addresses_of_this_host():
            await visit(box, address, service.port)
            await refusal_event(events, protocol="tcp", host=address, port=service.port)
        await visit(box, "127.0.0.1", service.port)
        await visit(box, "169.254.169.254", service.port)
        await refusal_event(events, protocol="tcp", host="169.254.169.254", port=service.port)
        assert service.visits == 0, "a pattern must not lead to the host's own services"
