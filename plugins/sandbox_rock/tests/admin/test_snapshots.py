"""Snapshots of ALE's own provider: whose they are, on which worker they lie, and what a name means."""

from __future__ import annotations

from typing import Any

from ale_rock.schemas import ALE_BASE

from .test_access import SETTINGS, shown


async def take(admin: Any, sandbox_id: str, name: str, headers: dict[str, str] | None = None) -> Any:
    """Make a snapshot and return the answer."""
    path = f"{ALE_BASE}/sandboxes/{sandbox_id}/snapshot"
    return await admin.http.post(path, json={"name": name}, headers=headers)


async def listed(admin: Any, headers: dict[str, str] | None = None) -> list[str]:
    """The caller's snapshots."""
    return (await admin.http.get(f"{ALE_BASE}/snapshots", headers=headers)).json()["snapshots"]


async def test_a_snapshot_is_its_users_alone(serve: Any) -> None:
    async with serve(**SETTINGS) as admin:
        annas = await admin.start(shown("anna"))
        assert (await take(admin, annas, "mine", shown("bert"))).status_code == 404
        name = (await take(admin, annas, "mine", shown("anna"))).json()["name"]
        assert await listed(admin, shown("anna")) == [name]
        assert await listed(admin, shown("bert")) == []
        refused = await admin.post("/start_async", {"spec": {"from_snapshot": name}}, **shown("bert"))
        assert "from_snapshot" in refused["message"]
        await admin.http.delete(f"{ALE_BASE}/snapshots", params={"name": name}, headers=shown("bert"))
        started = await admin.start(shown("anna"), spec={"from_snapshot": name})
        assert admin.workers[0].sandboxes[started].spec.from_snapshot == name
        berts = await admin.start(shown("bert"))
        assert (await take(admin, berts, "mine", shown("bert"))).json()["name"] != name
        for _ in range(2):
            gone = await admin.http.delete(f"{ALE_BASE}/snapshots", params={"name": name}, headers=shown("anna"))
            assert gone.status_code == 200
        assert await listed(admin, shown("anna")) == []
        assert len(admin.workers[0].snapshots) == 1
        lost = await admin.post("/start_async", {"spec": {"from_snapshot": name}}, **shown("anna"))
        assert lost["status"] == "Failed"


async def test_a_name_means_one_snapshot_wherever_it_was_made(admin: Any) -> None:
    ids: dict[str, str] = {}
    while len(ids) < 2:
        sandbox_id = await admin.start()
        ids[admin.service.fleet.live[sandbox_id].worker] = sandbox_id
    (first, one), (second, other) = ids.items()
    name = (await take(admin, one, "state")).json()["name"]
    assert (await take(admin, other, "state")).json()["name"] == name
    assert (admin.workers.workers[first].snapshots, admin.workers.workers[second].snapshots) == (set(), {name})
    forks = [await admin.start(spec={"from_snapshot": name}) for _ in range(2)]
    assert {admin.service.fleet.live[each].worker for each in forks} == {second}
    path = f"{ALE_BASE}/sandboxes/{other}/snapshot"
    assert (await admin.http.delete(path, params={"name": "state"})).status_code == 200
    assert await listed(admin) == []


async def test_names_that_no_provider_takes_are_refused(admin: Any) -> None:
    sandbox_id = await admin.start()
    for name in ("../up", "a b", "-x", "x" * 48, "a:b"):
        answer = await take(admin, sandbox_id, name)
        assert (answer.status_code, answer.json()["fault"]) == (400, "caller")
    assert not any(worker.snapshots for worker in admin.workers.workers.values())
