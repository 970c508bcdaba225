"""Turns the process into a server of an OpenEnv environment, on a free port of this machine alone."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from .adapters import load_object


def serve_openenv(folder: str, app: str, report_port: Callable[[int], None]) -> Any:
    """Serve the app (`server.app:app`) of an environment's folder for ever. The port is reported once the app is
    imported and the port accepts connections."""
    uvicorn = importlib.import_module("uvicorn")  # of the environment's own venv
    os.chdir(folder)
    sys.path.insert(0, os.getcwd())
    server = uvicorn.Server(uvicorn.Config(load_object(app), log_level="warning"))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    report_port(listener.getsockname()[1])
    server.run(sockets=[listener])
    raise RuntimeError("the server has ended")
