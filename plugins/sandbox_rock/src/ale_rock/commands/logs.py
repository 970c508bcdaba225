"""`ale rock logs`: what happened in a sandbox, or in the service."""

from __future__ import annotations

import asyncio
import codecs
import sys
from datetime import datetime
from typing import Any
from urllib.parse import quote

from ale_rock.client.service_client import ALE, ANSWER_S, ROCK, ServiceClient
from ale_rock.commands.client import ask_service
from ale_sandbox.host.commands import as_bytes

LOOK_S = 1.0


def show_logs(url: str, token_env: str | None, sandbox_id: str | None, follow: bool) -> None:
    """Print the log of a sandbox, or of the service if none is named; with `follow` until it ends, or Ctrl-C."""

    async def show(client: ServiceClient) -> None:
        if sandbox_id is None:
            await _show_events(client, follow)
        else:
            await _show_log(client, sandbox_id, follow)

    ask_service(url, token_env, show)


async def _show_log(client: ServiceClient, sandbox_id: str, follow: bool) -> None:
    path = f"{ROCK}/sandboxes/{quote(as_bytes(sandbox_id), safe='')}/logs"
    query = {"follow": "true"} if follow else None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async with client.request("GET", path, answer_s=None if follow else ANSWER_S, query=query) as response:
        async for piece in response.content.iter_any():
            sys.stdout.write(decoder.decode(piece))
            sys.stdout.flush()


async def _show_events(client: ServiceClient, follow: bool) -> None:
    after = 0.0
    while True:
        for event in (await client.json("GET", f"{ALE}/events", query={"after": repr(after)}))["events"]:
            print(_line(event), flush=True)
            after = event["at"]
        if not follow:
            return
        await asyncio.sleep(LOOK_S)


def _line(event: dict[str, Any]) -> str:
    """Return an event as a line: its time, its name, the sandbox, worker and user, and its reason."""
    at = datetime.fromtimestamp(event["at"]).isoformat(sep=" ", timespec="milliseconds")
    named = [f"{name} {event[name]}" for name in ("sandbox", "worker", "user") if event[name]]
    reason = f": {event['reason']}" if event["reason"] else ""
    return f"{at} {event['event']} {', '.join(named)}{reason}".rstrip()
