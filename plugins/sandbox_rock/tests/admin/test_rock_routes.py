"""Every route of ROCK's own server exists: it is answered as there, or refused in a sentence."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from starlette.routing import Match

from ale_rock.admin.cluster_routes import REFUSED
from ale_rock.admin.settings import Settings
from ale_rock.app import make_app
from ale_rock.schemas import ROCK_BASE

ROUTERS = {"sandbox_api": "", "sandbox_proxy_api": "", "warmup_api": "", "admin_ops_api": "/ops"}
"""Modules of ROCK's server, which cannot be imported without its database and Ray, and where their routes begin."""
ROUTE = re.compile(r"@\w+_router\.(get|post|put|delete|websocket|api_route)\(\s*\"([^\"]+)\"")


def routes_of_rock() -> set[tuple[str, str]]:
    """Return what ROCK's server answers: GET, POST, or WebSocket, and a path with `x` for each parameter."""
    spec = find_spec("rock")
    assert spec is not None
    assert spec.origin is not None
    found: set[tuple[str, str]] = set()
    for module, prefix in ROUTERS.items():
        text = Path(spec.origin).parent.joinpath(f"admin/entrypoints/{module}.py").read_text()
        for way, path in ROUTE.findall(text):
            ways = ("GET", "POST") if way == "api_route" else (way.upper(),)
            found |= {(each, prefix + re.sub(r"{[^}]+}", "x", path)) for each in ways}
    return found


def test_every_route_of_rock_exists(tmp_path: Path) -> None:
    app = make_app(Settings(database=f"sqlite:///{tmp_path / 'rock.sqlite'}"))
    theirs = routes_of_rock()
    assert len(theirs) > 40, "the pattern finds them"
    missing = []
    for way, path in theirs:
        kind = {"type": "websocket"} if way == "WEBSOCKET" else {"type": "http", "method": way}
        scope = {**kind, "path": ROCK_BASE + path, "root_path": "", "headers": []}
        if not any(route.matches(scope)[0] is Match.FULL for route in app.routes):
            missing.append((way, path))
    assert not missing


async def test_routes_without_a_counterpart_are_refused_in_a_sentence(admin) -> None:
    for path, (methods, sentence) in REFUSED.items():
        target = path.replace("{path:path}", "a/b").replace("{sandbox_id}", "a").replace("{taskset_id}", "b")
        for method in methods:
            answer = await (admin.get(target) if method == "GET" else admin.post(target, {"a": 1}))
            assert (answer["result"]["code"], answer["message"]) == (4000, sentence)


async def test_no_folder_of_the_machine_is_mounted_for_a_client(admin) -> None:
    sandbox_id = await admin.start()
    assert (await admin.get(f"/sandboxes/{sandbox_id}/mount-infos"))["result"] == ""
    unknown = await admin.get("/sandboxes/unknown/mount-infos")
    assert "was not found" in unknown["message"]


@pytest.mark.parametrize(("limit", "shown"), [(None, None), (512, "512m"), (2048, "2g")])
async def test_the_disk_of_a_sandbox_is_the_limit_that_its_worker_enforces(serve, limit, shown) -> None:
    async with serve() as admin:
        admin.workers[0].disk_mib = limit
        sandbox_id = await admin.start(disk="50g")
        assert (await admin.status(sandbox_id))["disk"] == shown
