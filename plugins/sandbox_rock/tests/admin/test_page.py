"""The web page and what it asks for: right numbers, each caller's own, cheap with many sandboxes, and no text runs."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ale_rock.admin.page import read_page
from ale_rock.schemas import ALE_BASE, ROCK_BASE

from .test_access import SETTINGS, shown

CHROMIUM = shutil.which("chromium")
ONE_CPU = {"image": "a", "cpus": 1, "memory": "64m"}
EVIL = "\"><img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"


async def overview(admin: Any, headers: dict[str, str] | None = None, **query: object) -> dict[str, Any]:
    """What the page asks for."""
    answer = await admin.http.get(f"{ALE_BASE}/overview", params=query, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_page_needs_no_token_and_may_load_nothing(serve):
    async with serve(**SETTINGS) as admin:
        answer = await admin.http.get("/")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/html")
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"(src|href)=\"?https?:|@import|url\(", answer.text)
        assert "/*STYLE*/" not in answer.text
        assert "/*SCRIPT*/" not in answer.text
        assert (await admin.http.get(f"{ALE_BASE}/overview")).status_code == 401


async def test_it_shows_sandboxes_queue_workers_images_and_events(serve, until):
    async with serve(
        workers=2,
        worker__cpus=1,
        worker__images=("a:1", "rock-0123456789ab-image-0", "ale-snapshot:ale-0123456789ab-of-a-run"),
        cpu_overcommit=1,
        worker__memory_bytes=1 << 30,
    ) as admin:
        first = await admin.start({"X-User-Id": "anna", "X-Namespace": "maths"}, cpus=1)
        await admin.start(cpus=1)
        waits = [
            asyncio.create_task(admin.post("/start_async", {**ONE_CPU, "priority": priority}, **{"X-Namespace": name}))
            for name, priority in (("maths", 0), ("maths", 0), ("code", 0), ("maths", 5))
        ]
        await until(lambda: len(admin.service.queue) == 4)
        seen = await overview(admin)
        assert seen["counts"] == {"live": 6, "pending": 4, "running": 2, "workers": 2}
        lines = [(line["priority"], line["namespace"], line["waiting"]) for line in seen["queue"]["lines"]]
        assert lines == [(5, "maths", 1), (0, "code", 1), (0, "maths", 2)]
        assert seen["sandboxes"]["total"] == 6
        assert seen["sandboxes"]["items"][-1]["id"] == first, "the newest come first"
        assert [worker["name"] for worker in seen["workers"]["items"]] == ["simulated-0", "simulated-1"]
        assert seen["workers"]["items"][0]["cpus"] == {"offered": 1, "promised": 1, "limit": 1}
        assert seen["capacity"]["cpus"] == {"offered": 2, "promised": 2, "limit": 2}
        assert seen["images"] == {"total": 1, "items": [{"image": "a:1", "workers": 2}]}, "snapshots are no images"
        assert seen["workers"]["items"][0]["images"] == ["a:1"]
        for sandbox_id in list(admin.service.fleet.live):
            await admin.post("/stop", {"sandbox_id": sandbox_id})
        await asyncio.gather(*waits)
        events = [(each["event"], each["sandbox"]) for each in (await overview(admin))["events"]]
        assert ("stop", first) in events
        assert ("started", first) in events
        assert ("worker registered", None) in events


async def test_sandboxes_are_found_by_state_user_namespace_worker_and_id(serve):
    async with serve(workers=2) as admin:
        for number in range(7):
            headers = {"X-User-Id": "Anna" if number % 2 else "bert", "X-Namespace": f"space-{number % 3}"}
            await admin.start(headers, sandbox_id=f"box-{number}")
        await admin.post("/stop", {"sandbox_id": "box-6"})

        async def ids(**query: object) -> list[str]:
            return [each["id"] for each in (await overview(admin, **query))["sandboxes"]["items"]]

        assert await ids() == [f"box-{number}" for number in (5, 4, 3, 2, 1, 0)]
        assert await ids(user="ann") == ["box-5", "box-3", "box-1"]
        assert await ids(user="ann", namespace="space-1") == ["box-1"]
        assert await ids(sandbox="x-4") == ["box-4"]
        assert await ids(state="stopped") == ["box-6"]
        assert await ids(state="pending") == await ids(worker="no such") == []
        assert sorted(await ids(worker="simulated-0") + await ids(worker="simulated-1")) == sorted(await ids())
        assert await ids(page_size=4, page=2) == ["box-1", "box-0"]
        last = (await overview(admin, page_size=4, page=9))["sandboxes"]
        assert (last["page"], last["pages"], last["total"]) == (2, 2, 6)
        assert (await admin.http.get(f"{ALE_BASE}/overview", params={"state": "odd"})).status_code == 422


async def test_a_user_sees_nothing_of_others(serve):
    async with serve(**SETTINGS) as admin:
        await admin.start(shown("anna"), sandbox_id="annas")
        seen = await overview(admin, shown("bert"))
        assert (seen["counts"], seen["sandboxes"]["total"], seen["user"]) == ({"live": 0}, 0, "bert")
        assert [each["event"] for each in seen["events"]] == ["worker registered"]
        assert "annas" not in str(seen)
        assert seen["workers"]["items"][0]["url"] == "http://127.0.0.1"
        assert (await overview(admin, shown("anna")))["sandboxes"]["items"][0]["id"] == "annas"
        assert (await overview(admin, shown("admin")))["counts"]["live"] == 1


async def test_without_tokens_no_other_sites_page_is_answered(admin):
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://evil.example:80"):
        answer = await admin.post("/start_async", {"image": "a"}, Origin=origin)
        assert "another site" in answer["message"]
        refused = await admin.http.get(f"{ALE_BASE}/overview", headers={"Origin": origin})
        assert refused.status_code == 403
    assert await admin.start({"Origin": admin.url})


def drawn(url: str, profile: Path) -> str:
    """The page as Chromium has drawn it."""
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
               "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}",
               "--virtual-time-budget=4000", "--dump-dom"]  # fmt: skip
    done = subprocess.run([CHROMIUM, *options, url], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
class TestInABrowser:
    async def test_hostile_texts_stay_texts(self, serve, tmp_path):
        async with serve(worker__images=(EVIL,)) as admin:
            spec = {"labels": {EVIL: EVIL}, "image": EVIL}
            headers = {"X-User-Id": EVIL, "X-Namespace": EVIL}
            await admin.start(headers, sandbox_id="evil", spec=spec)
            admin.workers[0].logs["evil"] = EVIL + "\n"
            page = await asyncio.to_thread(drawn, f"{admin.url}/#sandbox=evil", tmp_path)
        root = page[page.index("<html") :].split(">")[0]
        assert 'data-ready="1"' in root
        assert "data-error" not in root
        assert "<title>ALE ROCK service</title>" in page
        without_script = page.replace(read_page()[0][read_page()[0].index("<script>") :].split("</script>")[0], "")
        assert "<img" not in without_script
        assert without_script.count("&lt;img src=x onerror=") >= 7, "id, user, namespace, image, labels, log, images"
        for table in ("worker", "sandbox", "event", "image"):
            drawn_table = page.partition(f'id="{table}-table"')[2].partition("</table>")[0]
            heads, cells, rows = (len(re.findall(f"<{tag}[ >]", drawn_table)) for tag in ("th", "td", "tr"))
            assert cells == heads * (rows - 1) > 0, f"each column of {table} has its head"

    async def test_where_a_token_is_needed_the_page_asks_for_it(self, serve, tmp_path):
        async with serve(**SETTINGS) as admin:
            await admin.start(shown("anna"), sandbox_id="annas")
            page = await asyncio.to_thread(drawn, admin.url, tmp_path)
        assert "annas" not in page
        assert re.search(r'<main class="page" id="login">', page)
        assert re.search(r'<main class="page" id="content" hidden="">', page)


def test_every_route_that_the_page_asks_is_one_of_the_service():
    script = read_page()[0]
    assert f'ALE = "{ALE_BASE.lstrip("/")}/"' in script
    assert f'ROCK = "{ROCK_BASE.lstrip("/")}/"' in script
