"""The endpoint at a Unix socket: whose it is, what it replaces, and what it leaves."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from relay_fixtures import served

from ale.errors import ConfigError
from ale_endpoint.session_server import SessionServer
from ale_endpoint.unix_socket import unix_listener

LISTEN = """
import sys
from pathlib import Path
from ale_endpoint.unix_socket import unix_listener
with unix_listener(Path(sys.argv[1])):
    print("listening", flush=True)
    sys.stdin.read()
"""


async def test_the_same_endpoint_answers_at_the_port_and_at_the_socket(tmp_path: Path) -> None:
    async with served(tmp_path) as session:
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "endpoint.sock"))
        async with httpx.AsyncClient(transport=transport, base_url="http://endpoint") as client:
            headers = {"Authorization": f"Bearer {session.api_key}"}
            body = {"messages": [{"role": "user", "content": "hi"}]}
            assert (await client.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 401
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{session.base_url}/models")).status_code == 200
        found = (tmp_path / "endpoint.sock").lstat()
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert found.st_uid == os.getuid()
    assert not (tmp_path / "endpoint.sock").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="giving a socket away takes root")
def test_the_socket_belongs_to_whom_the_folder_belongs(tmp_path: Path) -> None:
    os.chown(tmp_path, 4321, 4322)
    with unix_listener(tmp_path / "s"):
        found = (tmp_path / "s").lstat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (4321, 4322, 0o600)


def test_what_a_killed_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = subprocess.Popen([sys.executable, "-c", LISTEN, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"listening\n"
        server.kill()
    assert path.is_socket()
    with unix_listener(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert not path.exists()


def test_a_socket_that_another_server_listens_at_is_left_alone(tmp_path: Path) -> None:
    with unix_listener(tmp_path / "s"):
        with pytest.raises(ConfigError, match="Another server listens"), unix_listener(tmp_path / "s"):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "s"))


def test_a_server_does_not_remove_the_socket_of_the_one_after_it(tmp_path: Path) -> None:
    with unix_listener(tmp_path / "s"):
        (tmp_path / "s").rename(tmp_path / "moved")
        (tmp_path / "s").write_text("the next one's")
    assert (tmp_path / "s").exists()


def test_a_path_that_cannot_be_a_socket_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ConfigError, match="is no socket"), unix_listener(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_text() == "kept"
    with pytest.raises(ConfigError, match="folder of the Unix socket"), unix_listener(tmp_path / "none" / "s"):
        pass


def test_a_path_may_be_longer_than_a_socket_address(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with unix_listener(folder / "s"):
        assert (folder / "s").is_socket()
    assert not (folder / "s").exists()


async def test_an_endpoint_whose_socket_cannot_be_had_serves_nothing(tmp_path: Path) -> None:
    async with served(tmp_path):
        with pytest.raises(ConfigError, match="Another server listens"):
            async with SessionServer(tmp_path / "endpoint.sock"):
                pass
