"""A server of two packages of one line each, and a package index that has them, so that it is installed in seconds."""

from __future__ import annotations

import functools
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ale_engines.server.python_environments import Environment


@dataclass(frozen=True)
class SmallServer(Environment):
    """The environment of a server that is a package `served`."""

    server: str = "vllm"
    variant: str = "cpu"
    version: str = "1.0"
    wanted: Sequence[str] = field(default=("torch==1.0", "served==1.0"), compare=False)

    @property
    def package(self) -> str:
        """Its package."""
        return "served"

    def requirements(self) -> Sequence[str]:
        """What the index below has."""
        return self.wanted


@dataclass
class Index:
    """A package index on a port of this machine. It answers once `answers` is set; `asked` says that pip waits."""

    url: str
    asked: threading.Event = field(default_factory=threading.Event)
    answers: threading.Event = field(default_factory=threading.Event)


@contextmanager
def package_index(folder: Path) -> Iterator[Index]:
    """Serve wheels of `torch` and `served`, version 1.0, from a folder."""
    for name in ("torch", "served"):
        write_wheel(folder / name, name)
    index = Index("")

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.set()
            if index.answers.wait(60):
                super().do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    index.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield index
    finally:
        index.answers.set()
        server.shutdown()
        server.server_close()
        thread.join()


def write_wheel(folder: Path, name: str) -> None:
    """Write the wheel of a package that has a command of its own name, which prints that name."""
    folder.mkdir(parents=True)
    about = f"{name}-1.0.dist-info"
    members = {
        f"{name}.py": f"def main():\n    print({name!r})\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    members[f"{about}/RECORD"] = "".join(f"{member},,\n" for member in (*members, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for member, text in members.items():
            wheel.writestr(member, text)
