"""EnvHub: versions, whose they are, and what their images were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from attack_tools import SETTINGS, shown
from sqlalchemy import text

import ale_rock.admin
from ale_rock.admin.store import Store, connect
from ale_rock.envhub.models import Environment
from ale_rock.envhub.store import EnvHub
from ale_rock.schemas import ALE_BASE

PLAYED = {"env": "ale:bash/train/0"}


async def register(admin: Any, image: str, by: str = "admin", name: str = "maze", **spec: Any) -> dict[str, Any]:
    """Register an environment."""
    asked = {"env_name": name, "image": image, "extra_spec": {**PLAYED, **spec}}
    answer = await admin.http.post("/env/register", json=asked, headers=shown(by))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def get(admin: Any, name: str, by: str = "admin", **more: Any) -> str:
    """The image of an environment, or the HTTP status of a refusal."""
    answer = await admin.http.post("/env/get", json={"env_name": name, **more}, headers=shown(by))
    return answer.json()["image"] if answer.status_code == 200 else str(answer.status_code)


async def make(admin: Any, name: str, by: str = "admin") -> str:
    """The image in whose sandbox an environment is made, or why it is not."""
    answer = await admin.http.post("/apis/v1/envs/gem/make", json={"env_id": name}, headers=shown(by))
    if answer.status_code != 200:
        return f"{answer.status_code} {answer.json()['detail']}"
    return admin.workers[0].sandboxes[answer.json()["sandbox_id"]].spec.image


async def test_every_registration_is_a_version_that_can_be_named(serve: Any) -> None:
    async with serve(**SETTINGS) as admin:
        first = await register(admin, "maze:1")
        second = await register(admin, f"maze@sha256:{'a' * 64}", by="anna")
        assert (await register(admin, "maze:2"))["create_at"] == first["create_at"]
        assert set(second) == {
            "env_name", "image", "owner", "description", "tags", "extra_spec", "create_at", "update_at"
        }  # fmt: skip
        assert [await get(admin, name) for name in ("maze", "maze@1", "maze@2", "maze@3")] == [
            "maze:2", "maze:1", "maze:2", "404"
        ]  # fmt: skip
        assert [await make(admin, name) for name in ("maze", "maze@1")] == ["maze:2", "maze:1"]
        assert await make(admin, "maze@9") == "404 " + missing("maze@9")
        query = {"env_name": "maze", "all_versions": True}
        answer = await admin.http.get(f"{ALE_BASE}/environments", params=query, headers=shown("admin"))
        found = answer.json()["environments"]
        assert [(each["version"], each["image"], each["registered_by"]) for each in found] == [
            (2, "maze:2", "admin"),
            (1, "maze:1", "admin"),
        ]
        hers = await admin.http.get(f"{ALE_BASE}/environments", params=query, headers=shown("anna"))
        (only,) = hers.json()["environments"]
        assert (only["registered_by"], only["image_digest"]) == ("anna", f"sha256:{'a' * 64}")
        refused = await admin.http.post("/env/register", json={"env_name": "a@1", "image": "i"}, headers=shown("anna"))
        assert refused.status_code == 422


async def test_a_deleted_version_is_made_no_more_and_its_number_is_not_given_again(serve: Any) -> None:
    async with serve(**SETTINGS) as admin:
        for image in ("maze:1", "maze:2"):
            await register(admin, image)
        one = {"env_name": "maze@1"}
        assert (await admin.http.post("/env/delete", json=one, headers=shown("admin"))).json() is True
        assert [await get(admin, name) for name in ("maze", "maze@1")] == ["maze:2", "404"]
        await admin.http.post("/env/delete", json={"env_name": "maze"}, headers=shown("admin"))
        assert await get(admin, "maze") == "404"
        await register(admin, "maze:3")
        assert [await get(admin, name) for name in ("maze@1", "maze@2", "maze@3")] == ["404", "404", "maze:3"]


async def test_a_user_neither_changes_nor_unknowingly_makes_anothers_environment(serve: Any) -> None:
    async with serve(**SETTINGS) as admin:
        await register(admin, "annas:1", by="anna")
        assert await get(admin, "maze", by="bert") == "404"
        assert "annas" not in (await admin.http.post("/env/list", json={}, headers=shown("bert"))).text
        assert (await make(admin, "maze", by="bert"))[:3] in ("422", "503")  # gem's of that name, which there is not
        assert await make(admin, "maze", by="anna") == "annas:1"
        await register(admin, "berts:1", by="bert")
        assert [await make(admin, "maze", by=who) for who in ("anna", "bert")] == ["annas:1", "berts:1"]
        assert (await admin.http.post("/env/delete", json={"env_name": "maze"}, headers=shown("bert"))).json() is True
        for path in ("get", "delete"):
            asked = {"env_name": "maze", "user": "anna"}
            assert (await admin.http.post(f"/env/{path}", json=asked, headers=shown("bert"))).status_code == 403
        assert await get(admin, "maze", by="anna") == "annas:1"
        assert (await get(admin, "maze"), await get(admin, "maze", user="anna")) == ("404", "annas:1")
        listed = await admin.http.post("/env/list", json={}, headers=shown("admin"))
        assert [each["owner"] for each in listed.json()["envs"]] == ["anna"]


async def test_what_an_admin_registers_is_everybodys_and_only_admins_change_it(serve: Any) -> None:
    nobody = {"token": "n" * 20, "role": "user"}
    async with serve(**SETTINGS | {"tokens": [*SETTINGS["tokens"], nobody]}) as admin:
        await register(admin, "shared:1")
        for path in ("register", "delete"):
            asked, headers = {"env_name": "maze", "image": "other:1"}, {"X-API-Key": nobody["token"]}
            refused = await admin.http.post(f"/env/{path}", json=asked, headers=headers)
            assert (refused.status_code, "names no user" in refused.json()["detail"]) == (403, True)
        assert [await make(admin, "maze", by=who) for who in ("anna", "bert")] == ["shared:1", "shared:1"]
        refused = await admin.http.post("/env/delete", json={"env_name": "maze"}, headers=shown("bert"))
        assert (refused.status_code, "only an admin" in refused.json()["detail"]) == (403, True)
        await register(admin, "annas:1", by="anna")
        assert [await make(admin, "maze", by=who) for who in ("anna", "bert")] == ["annas:1", "shared:1"]


async def test_a_version_whose_images_name_was_given_to_another_image_is_refused(serve: Any) -> None:
    async with serve(**SETTINGS, worker__images=("maze:1",)) as admin:
        admin.workers[0].image_ids["maze:1"] = f"sha256:{'a' * 64}"
        await register(admin, "maze:1")
        assert await make(admin, "maze@1") == "maze:1"
        admin.workers[0].image_ids["maze:1"] = f"sha256:{'b' * 64}"
        before = set(admin.workers[0].sandboxes)
        refused = await make(admin, "maze@1")
        assert refused.startswith("422")
        assert f"sha256:{'b' * 64}" in refused
        assert set(admin.workers[0].sandboxes) == before
        assert await make(admin, "maze") == "maze:1"  # the name alone stands for whatever it is now


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"agents": ["a", "a"]}, "name of its own"),
        ({"sandboxes": "separate"}, "agents"),
        ({"network": "all"}, "network"),
    ],
)
async def test_a_recipe_that_cannot_be_is_refused_when_it_is_registered(serve: Any, spec: Any, word: str) -> None:
    async with serve(**SETTINGS) as admin:
        asked = {"env_name": "maze", "image": "i", "extra_spec": spec}
        refused = await admin.http.post("/env/register", json=asked, headers=shown("anna"))
        assert (refused.status_code, word in refused.json()["detail"]) == (422, True), refused.text


async def test_environments_of_an_earlier_database_are_first_versions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rock.sqlite'}"
    config, engine = Config(), connect(url)
    config.set_main_option("script_location", str(Path(ale_rock.admin.__file__).parent / "migrations"))
    row = {"name": "maze", "image": "maze:1", "owner": "anna", "text": "", "tags": '["toy"]', "at": "2026-01-01T00:00"}
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0004")
        wanted = "INSERT INTO environments VALUES (:name, :image, :owner, :text, :tags, NULL, :at, :at)"
        connection.execute(text(wanted), row)
    engine.dispose()
    store = Store(url)
    await store.start()
    try:
        hub = EnvHub(store)
        await hub.register(Environment(env_name="maze", image="maze:2"), "", "admin")
        found = await hub.versions("maze", ("",))
        assert [(each.version, each.image, each.registered_by) for each in found] == [
            (2, "maze:2", "admin"),
            (1, "maze:1", "anna"),
        ]
        assert found[1].tags == ["toy"]
    finally:
        await store.close()


def missing(name: str) -> str:
    """The sentence about an environment that there is not."""
    return f"There is no environment {name}; `ale rock env list` lists those that are registered."
