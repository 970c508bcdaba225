"""Reports the connections that a sandbox's network policy refused at a ROCK service, as events of the run that owns
it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from pydantic import ValidationError

from ale.errors import AleError, ConfigError
from ale_rock.client.sandbox import RockSandbox
from ale_rock.client.service_client import ANSWER_S, Missing
from ale_rock.schemas import RefusedConnection
from ale_sandbox.network.egress_gate import BlockedConnection

ENDED = b"null"
AGAIN_S, MOST_AGAIN_S = 0.5, 30.0


async def follow_refusals(box: RockSandbox, report: Callable[[BlockedConnection], None]) -> None:
    """Report each refused connection of a sandbox, until the sandbox has ended. After a break of the stream it goes on
    with the first one that was not reported."""
    reported, wait_s = 0, AGAIN_S
    while not box.ended.is_set():
        try:
            query = {"after": str(reported)}
            async with box.client.request("GET", f"{box.path}/refusals", None, ANSWER_S, query) as response:
                async for line in response.content:
                    if line.strip() == ENDED:
                        return
                    if line.strip():
                        report(BlockedConnection(**RefusedConnection.model_validate_json(line).model_dump()))
                        reported, wait_s = reported + 1, AGAIN_S
        except (Missing, ConfigError):
            return  # it has ended
        except (AleError, ValidationError):
            pass  # the service does not answer, or its answer broke off
        with suppress(TimeoutError):
            await asyncio.wait_for(box.ended.wait(), wait_s)
        wait_s = min(MOST_AGAIN_S, 2 * wait_s)
