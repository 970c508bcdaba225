"""The way to programs in sandboxes is closed to strangers, and the service's tokens do not go through it."""

from __future__ import annotations

from collections.abc import Iterator

import aiohttp
import httpx
import pytest
from service_process import Service, serving
from support.sandbox_providers import must_answer

pytestmark = pytest.mark.bwrap
ANNA, BERT, ADMIN = "token-of-anna-0123456789", "token-of-bert-0123456789", "token-of-admin-0123456789"
TOKENS = f"""
- {{token: {ANNA}, role: user, user: anna}}
- {{token: {BERT}, role: user, user: bert}}
- {{token: {ADMIN}, role: admin}}
"""
ROCK = "/apis/envs/sandbox/v1"
SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(str(self.headers).encode())
http.server.HTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
"""
LISTEN = 'python3 -c "$0" >log 2>&1 & until python3 -c \'import socket; socket.create_connection(("127.0.0.1", 8080))\''
LISTEN += " 2>log2; do sleep 0.05; done"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with two users; in Anna's sandbox a program listens."""
    must_answer("local")
    folder = tmp_path_factory.mktemp("service")
    tokens = folder / "tokens.yaml"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    with serving(folder, "--token-file", str(tokens), headers={"X-API-Key": ANNA}) as running:
        small = {"image": "a", "memory": "256m", "cpus": 0.5, "sandbox_id": "annas"}
        assert running.post(f"{ROCK}/start_async", small).json()["status"] == "Success"
        listen = {"sandbox_id": "annas", "command": ["sh", "-c", LISTEN, SERVER]}
        assert running.post(f"{ROCK}/execute", listen).json()["result"]["exit_code"] == 0
        yield running


def ask(service: Service, **headers: str) -> httpx.Response:
    """Ask the program in Anna's sandbox."""
    return httpx.get(f"{service.url}{ROCK}/sandboxes/annas/proxy/", headers=headers, timeout=60)


@pytest.mark.parametrize("name", ["Authorization", "XRL-Authorization", "X-API-Key"])
def test_the_program_does_not_see_the_token(service: Service, name: str) -> None:
    seen = ask(service, **{name: ANNA if name == "X-API-Key" else f"Bearer {ANNA}"})
    assert seen.status_code == 200
    assert ANNA not in seen.text
    assert "authorization" not in seen.text.lower()


def test_the_program_sees_a_token_of_its_own(service: Service) -> None:
    seen = ask(service, **{"X-API-Key": ANNA, "Authorization": "Bearer of-the-program"})
    assert "Bearer of-the-program" in seen.text
    assert ANNA not in seen.text


async def test_strangers_and_other_users_are_kept_out(service: Service) -> None:
    assert ask(service).status_code == 401
    assert ask(service, Authorization="Bearer wrong").status_code == 401
    other = ask(service, Authorization=f"Bearer {BERT}")
    assert (other.status_code, "was not found" in other.json()["detail"]) == (404, True)
    async with aiohttp.ClientSession() as session:
        for path in ("proxy/", "portforward?port=8080"):
            for headers, status in (({}, 401), ({"X-API-Key": BERT}, 404)):
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await session.ws_connect(f"{service.url}{ROCK}/sandboxes/annas/{path}", headers=headers)
                assert refused.value.status == status


async def test_the_worker_lets_in_its_admin_alone(service: Service) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{service.url}/apis/ale/v1/status", headers={"X-API-Key": ADMIN}) as answer:
            [worker] = (await answer.json())["workers"]
        async with session.get(f"{worker['url']}/sandboxes/annas/ports/8080") as answer:
            assert answer.status == 401
        for path in ("ports", "portforward"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"{worker['url']}/sandboxes/annas/{path}/8080")
            assert refused.value.status == 401
