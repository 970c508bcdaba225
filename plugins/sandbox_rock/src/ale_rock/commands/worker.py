"""`ale rock worker`: offers the sandboxes of this machine, or of each node of Ray, until a signal comes."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from typing import Any

from pydantic import SecretStr

from ale.errors import ConfigError
from ale.registry.drivers import load_plugin
from ale.registry.validation import validate
from ale.specs.choice import PluginChoice
from ale_rock.client.service_client import check_url
from ale_rock.commands.client import read_token
from ale_rock.commands.worker_options import Offer
from ale_rock.http.server import leave_on_signals, listener_at, run, show_messages, url_of
from ale_rock.worker.serve import build_provider, offering
from ale_rock.worker.settings import WorkerSettings

EVERY_ADDRESS = ("0.0.0.0", "::")


def work(
    admin: str,
    offer: Offer,
    host: str,
    port: int,
    url: str | None,
    name: str | None,
    token_env: str | None,
    owned: bool,
) -> None:
    """Serve until a signal comes, or if `owned` until standard input is closed. Raises `ConfigError`."""
    if host in EVERY_ADDRESS and url is None:
        raise ConfigError(
            f"--host {host} is no address that the service could use: name one with --url http://HOST:PORT."
        )
    own = offer.read_provider_settings()
    listener = listener_at(host, port)
    # Anybody who reaches this port could run commands, so requests need a token that only the admin gets.
    token = secrets.token_urlsafe(32)
    given: dict[str, Any] = {
        **offer.read(),
        "name": name or socket.gethostname(),
        "url": check_url(url or url_of(listener)).rstrip("/"),
        "token": SecretStr(token),
    }
    settings = read_settings(given, admin, token_env)
    provider = build_provider(offer.sandbox, own)
    run(_work(provider, settings, listener, owned))


async def _work(provider: Any, settings: WorkerSettings, listener: socket.socket, owned: bool) -> None:
    leave = leave_on_signals()
    if owned:
        watch_standard_input(leave)
    async with offering(provider, settings, listener) as refused:
        refused.add_done_callback(lambda done: leave.set())
        print(f"worker {settings.name}: {settings.url}", flush=True)
        await leave.wait()
    if refused.done():
        raise ConfigError(refused.result())


def work_on_ray(admin: str, offer: Offer, address: str, token_env: str | None, owned: bool) -> None:
    """Serve until a signal comes, with a worker on each node of the Ray at an address. Raises `ConfigError`."""
    from ale_rock.ray_cluster.nodes import connect, disconnect

    own = offer.read_provider_settings()
    settings = read_settings(offer.read(), admin, token_env)
    plugin = load_plugin("sandbox", PluginChoice(use=offer.sandbox, settings=own), "sandbox")
    connect(address)
    try:
        run(_work_on_ray(settings, own, "gpu" in plugin.cls.capabilities, owned))
    finally:
        disconnect()


async def _work_on_ray(settings: WorkerSettings, own: dict[str, Any], has_gpus: bool, owned: bool) -> None:
    from ale_rock.ray_cluster.nodes import NodeWorkers

    leave = leave_on_signals()  # Ray's own handlers, which it has set by now, would abort the process
    if owned:
        watch_standard_input(leave)
    await NodeWorkers(settings, own, has_gpus).keep(leave)


def read_settings(given: dict[str, Any], admin: str, token_env: str | None) -> WorkerSettings:
    """Return checked settings of a worker of this admin, and keep its tokens out of messages. Raises `ConfigError`."""
    given["admin_url"] = check_url(admin).rstrip("/")
    if token_env is not None:
        given["admin_token"] = SecretStr(read_token(token_env))
    settings = validate(WorkerSettings, given, "worker")
    show_messages((settings.token, settings.admin_token))
    return settings


def watch_standard_input(leave: asyncio.Event) -> None:
    """Set `leave` when standard input is closed, which means that the owner has ended."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def read() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            leave.set()

    loop.add_reader(descriptor, read)
