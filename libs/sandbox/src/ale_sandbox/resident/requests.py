"""Dispatches the host's requests to the parts of the resident. Parts that few sandboxes need are imported at their
first use."""

from __future__ import annotations

import os
import sys

from ale_sandbox.resident import files
from ale_sandbox.resident.command import environment
from ale_sandbox.resident.frames import (
    ACK,
    CANCEL,
    CONNECT,
    DATA,
    DONE,
    EXEC,
    INIT,
    KILL,
    READ,
    RECONNECT,
    RESET,
    RUN,
    SHELL,
    STREAM,
    TREE,
    USAGE,
    WRITE,
)
from ale_sandbox.resident.privileges import Rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ale_sandbox.resident.interface import Resident

GATE = "/.ale/gate/socket"
"""The path of the network gate's socket, if the sandbox has a gate."""


def serve(resident: Resident, call: int, kind: bytes, fields: list[bytes]) -> None:
    """One request."""
    if resident.resetting is not None and kind != CANCEL:
        raise OSError(16, "the sandbox is being reset")
    resident.used = resident.used or kind not in (INIT, RESET, CANCEL, READ, USAGE)
    if kind == EXEC:
        resident.keep_relay()
        resident.start(call, fields)
    elif kind == CONNECT:
        from ale_sandbox.resident.network import ports

        ports.serve(resident, call, fields)
    elif kind == ACK and call in resident.ports:
        resident.ports[call].grant(int(fields[0]))
    elif kind in (STREAM, ACK):
        resident.stream(call, kind, fields)
    elif kind in (SHELL, RUN):
        from ale_sandbox.resident.shells import shell

        resident.keep_relay()
        shell.serve(resident, call, kind, fields)
    elif kind == CANCEL:
        if call in resident.commands:
            resident.commands[call].let_go()
            resident.kill(resident.commands[call])
        elif call in resident.shells:
            resident.shells[call].close()
        elif call in resident.ports:
            resident.ports[call].let_go(abort=True)
        elif resident.transfers is not None and resident.transfers.drop(call):
            resident.send(call, DONE, [])
    elif kind == TREE:
        if resident.transfers is None:
            from ale_sandbox.resident.trees.transfers import Transfers

            resident.transfers = Transfers(resident)
        last, answer = resident.transfers.serve(call, fields)
        resident.send(call, DONE if last else DATA, answer)
    elif kind == WRITE:
        files.write(resident.workdir, resident.rights, fields)
        resident.send(call, DONE, [])
    elif kind == READ:
        limit, start = int(fields[1]), [int(field) for field in fields[2:3]]
        for piece in files.read(resident.workdir, resident.rights, os.fsdecode(fields[0]), limit, *start):
            resident.send(call, DATA, [piece])
        resident.send(call, DONE, [])
    elif kind == KILL:
        resident.kill_all()
        resident.keep_relay()
        resident.send(call, DONE, [])
    elif kind == USAGE:
        from ale_sandbox.resident import usage

        resident.send(call, DONE, [str(number).encode() for number in (usage.in_memory(), *usage.network())])
    elif kind == INIT and resident.env:  # the sandbox was restored from a checkpoint
        resident.env = environment(fields[6:])
        resident.send(call, DONE, [])
    elif kind == INIT:
        set_up(resident, fields)
        resident.send(call, DONE, [])
        if fields[0] != b"plain":
            from ale_sandbox.resident.reset import baseline

            resident.baseline = baseline.record([resident.workdir, os.fsdecode(resident.env[b"HOME"])])
        resident.keep_relay()
    elif kind == RECONNECT:
        if sys.argv[1].isdigit():
            raise OSError(38, "the sandbox has only the connection that it was started with")
        from ale_sandbox.resident.reconnect import reconnect

        resident.send(call, DONE, [])
        reconnect(resident, sys.argv[1])
    elif kind == RESET:
        from ale_sandbox.resident.reset.cleanup import Reset

        resident.resetting = Reset(resident, call, environment(fields[6:]))
    else:
        raise OSError(38, "the sandbox does not know this request")


def set_up(resident: Resident, fields: list[bytes]) -> None:
    """Take the sandbox's constants; become root of the namespace if there are several users."""
    mode, resident.workdir, resident.shell, limits, make, plan = (os.fsdecode(f) for f in fields[:6])
    for pair in limits.split():
        name, value = pair.split("=")
        resident.rlimits[name] = int(value)
    resident.env = environment(fields[6:])
    if make:
        from ale_sandbox.resident import image_setup

        resident.shell = image_setup.find_shell(resident.shell)
        image_setup.make_folders(resident.workdir, os.fsdecode(resident.env[b"HOME"]), owned=mode == "users")
    if plan:
        from ale_sandbox.resident.network.relay_process import RelayProcess

        resident.relay = RelayProcess(plan.splitlines(), GATE, own_user=mode == "users")
    resident.rights = Rights(several=mode == "users")
    if make:  # in a container, besides the engine's filter; bubblewrap set it before this program began
        from ale_sandbox.resident import seccomp

        seccomp.install()
