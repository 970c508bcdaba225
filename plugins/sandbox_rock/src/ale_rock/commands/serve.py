"""`ale rock serve`: the admin in this process, and in another one the worker of this machine, or those of Ray's nodes.

The other process, `ale rock worker`, ends with this one, also after `kill -9`, because its standard input is closed
then. If it dies, it is started again. Workers that must outlive the admin are started apart (`--worker none`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import stat
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale.registry.validation import validate
from ale_rock.admin.settings import Settings
from ale_rock.commands.worker_options import Offer, read_yaml
from ale_rock.gem.task_sources import TaskSources
from ale_rock.http.server import leave_on_signals, listener_at, run, serving, show_messages, url_of

ALE = (sys.executable, "-c", "from ale.cli.main import main; main()")
WORKER_TOKEN = "ALE_ROCK_WORKER_TOKEN"
AGAIN_S, FAREWELL_S = 1.0, 30.0
log = logging.getLogger("ale.rock")


def serve(
    host: str,
    port: int,
    database: str | None,
    token_file: Path | None,
    settings_file: Path | None,
    offer: Offer | None,
    ray: str | None,
) -> None:
    """Serve until a signal comes, with workers that offer this on the nodes of the Ray at an address, or with one on
    this machine, or without. Raises `ConfigError`."""
    if ray is not None and offer is None:
        raise ConfigError("--cluster ray starts workers, and --worker is none; say which sandboxes they have.")
    given: dict[str, Any] = read_yaml(settings_file, "--settings") if settings_file is not None else {}
    if not isinstance(given, dict):
        raise ConfigError(f"--settings {settings_file} must hold keys and values, such as 'queue_limit: 1000'.")
    for key, option in (("host", "--host"), ("tokens", "--token-file")):
        if key in given:
            raise ConfigError(f"--settings {settings_file}: '{key}' is no setting of this file; {option} gives it.")
    given["host"] = host
    if database is not None:
        given["database"] = database
    worker_token: str | None = None
    if token_file is not None:
        tokens = read_tokens(token_file)
        worker_token = secrets.token_urlsafe(32)  # the token of this command's own worker
        given["tokens"] = [*tokens, {"token": worker_token, "role": "worker"}]
    settings = validate(Settings, given, "rock")
    if "task_sources" in given:
        TaskSources(settings.task_sources).check()
    show_messages(each.token for each in settings.tokens)
    nodes = [] if ray is None else ["--cluster=ray", f"--address={ray}"]
    run(_serve(settings, port, None if offer is None else [*offer.arguments(), *nodes], worker_token, ray is not None))


async def _serve(
    settings: Settings, port: int, worker: list[str] | None, worker_token: str | None, on_nodes: bool
) -> None:
    from ale_rock.admin.database_lock import database_errors_in_words, database_of_this_service
    from ale_rock.app import make_app

    leave = leave_on_signals()
    listener = listener_at(settings.host, port)
    url = url_of(listener)
    async with AsyncExitStack() as stack:
        stack.enter_context(database_of_this_service(settings.database))
        with database_errors_in_words(settings.database):
            app = make_app(settings)
            store = app.state.service.fleet.store
            store.on_taken = leave.set
            await stack.enter_async_context(serving(app, listener))
        stack.callback(app.state.service.leave)  # otherwise the server would wait for followers of refused connections
        print(f"ROCK service: {url}", flush=True)
        if worker is None:
            await leave.wait()
        else:
            # If the admin listens at every address, this machine's worker uses the loopback address, and Ray's
            # nodes use the address that Ray knows.
            here = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
            await keep_worker(["--admin", url if on_nodes else here, *worker], worker_token, leave)
        if store.taken is not None:
            with database_errors_in_words(settings.database):
                raise store.taken


async def keep_worker(arguments: list[str], token: str | None, leave: asyncio.Event) -> None:
    """Run a worker until `leave` is set; one that ends before is started again."""
    command = [*ALE, "rock", "worker", "--owned", *arguments]
    environment = dict(os.environ)
    if token is not None:  # an argument could be read by every user of this machine
        environment[WORKER_TOKEN] = token
        command += ["--token-env", WORKER_TOKEN]
    leaving = asyncio.create_task(leave.wait())
    while not leave.is_set():
        child = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, env=environment, start_new_session=True
        )
        ending = asyncio.create_task(child.wait())
        try:
            await asyncio.wait([leaving, ending], return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                assert child.stdin is not None
                child.stdin.close()
                await asyncio.wait([ending], timeout=FAREWELL_S)
        finally:
            if not ending.done():
                with suppress(ProcessLookupError):
                    child.kill()
            code = await ending
        if code == ConfigError.exit_code and not leave.is_set():
            raise ConfigError("The worker could not start; its message is above.")
        if not leave.is_set():
            log.warning("The worker's process ended with the exit code %d; it is started again.", code)
            await asyncio.wait([leaving], timeout=AGAIN_S)


def read_tokens(file: Path) -> list[Any]:
    """Return the tokens in a file. Raises `ConfigError`, also if other users could read it."""
    found = read_yaml(file, "--token-file")
    if not isinstance(found, list) or not found:
        raise ConfigError(
            f"--token-file {file} must hold a list, such as '- {{token: A_LONG_SECRET, role: user, user: anna}}'."
        )
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise ConfigError(f"--token-file {file} can be read by other users; run chmod 600 {file}.")
    return found
