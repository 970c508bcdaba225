"""A sandbox without a connection to its host: while a checkpoint of its processes is made, which could hold but one end of it.

The socket of the host is gone until then; where it is back, that is the end of the checkpoint. In a sandbox that was made of a
checkpoint it is another host's socket, and perhaps another day.
"""

from __future__ import annotations

import os
import time

from ale_resident.inside.resident import connected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ale_resident.inside.resident import Resident

AWAY_S = 300.0
"""How long the host is waited for; after that it is taken for gone."""
LOOK_S = 0.002


def part(resident: Resident, path: str) -> None:
    """Let the connection go, and come back with another one. Does not return where there will be none."""
    resident.poll.unregister(resident.control)
    os.close(resident.control)
    left = time.monotonic()
    while True:
        late = time.monotonic() - left > AWAY_S  # asked before trying: this may be another day when it goes on
        try:
            resident.heed(connected(path))
            break
        except OSError:
            if late:
                resident.end()
            time.sleep(LOOK_S)
    away = time.monotonic() - left
    for command in resident.commands.values():
        command.started += away
        command.deadline += away
