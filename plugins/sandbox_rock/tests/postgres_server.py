"""A PostgreSQL server of Debian's package, in a folder of its own: nothing of the machine's own servers is touched."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

START_S = 60.0
USER = "rock"


def find_binaries() -> Path | None:
    """Return the folder of PostgreSQL's programs; Debian puts none but `psql` in the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    in_path = shutil.which("initdb")
    return found[-1].parent if found else Path(in_path).resolve().parent if in_path else None


def why_not() -> str | None:
    """Return why no server can run here; None if one can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed"
    if find_binaries() is None:
        return "PostgreSQL is not installed; apt-get install postgresql"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "PostgreSQL does not run as root, and there is no user 'postgres'"
        if Path("/proc/self/uid_map").read_text().split()[2] == "1":
            return "PostgreSQL does not run as root, and this user namespace has no other user"
    return None


class PostgresServer:
    """A server on loopback. `folder` is made, and may not exist; the server's user must reach it."""

    def __init__(self, folder: Path, port: int) -> None:
        binaries = find_binaries()
        assert binaries is not None, why_not()
        self.folder, self.port, self._binaries = folder, port, binaries
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        self._as: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL}
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._as |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        options = ["--no-sync", "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale"]
        command = [binaries / "initdb", "-D", folder / "data", *options]
        subprocess.run(command, check=True, capture_output=True, **self._as)
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers; one that was killed recovers first."""
        settings = {
            "fsync": "off", "unix_socket_directories": "", "listen_addresses": "127.0.0.1", "port": self.port,
            "shared_buffers": "16MB", "max_connections": 30,
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if self._process is None or self._process.poll() is not None:  # the last one's processes still end
                with (self.folder / "log").open("ab") as log:
                    command = [self._binaries / "postgres", "-D", self.folder / "data", *options]
                    self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as)
            if self._answers():
                return
            time.sleep(0.05)
        raise AssertionError(f"PostgreSQL does not answer: {(self.folder / 'log').read_text()[-2000:]}")

    def _answers(self) -> bool:
        import psycopg

        try:
            with psycopg.connect(self.address("postgres"), connect_timeout=5):
                return True
        except psycopg.OperationalError:
            return False

    def address(self, database: str, port: int | None = None) -> str:
        """Return the URL of a database, at the port of a relay if one is given."""
        return f"postgresql://{USER}@127.0.0.1:{port or self.port}/{database}"

    def url(self, database: str, port: int | None = None) -> str:
        """The same for SQLAlchemy."""
        return self.address(database, port).replace("postgresql:", "postgresql+psycopg:")

    def create(self, database: str) -> None:
        """Make an empty database."""
        import psycopg

        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f'create database "{database}"')  # type: ignore[arg-type]

    def kill(self) -> None:
        """End it by SIGKILL; its other processes notice that."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it at once, in good order."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # it waits neither for clients nor for the disk
            self._process.wait(30)
