"""These tests check that an agent is put into an image only once, with a recipe of one line, in local sandboxes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.sandbox_providers import provider_of

from ale.errors import ConfigError
from ale.specs.sandbox import SandboxProvider, SandboxSpec
from ale_endpoint.agents import Recipe, baking
from ale_endpoint.agents.baking import Bakery, bake_spec, snapshot_name
from ale_endpoint.agents.package_indexes import package_settings

pytestmark = pytest.mark.bwrap

Tell = Callable[..., None]


@pytest.fixture
async def provider() -> AsyncIterator[SandboxProvider]:
    async with provider_of("local") as started:
        yield started


@pytest.fixture
async def recipe(provider: SandboxProvider) -> AsyncIterator[Recipe]:
    """An agent that says hello; its snapshots go with the test."""
    name = f"hello-{secrets.token_hex(4)}.1"
    script = 'mkdir -p "$ALE_AGENT/bin"\nprintf "echo hello\\n" > "$ALE_AGENT/bin/hello"\necho cached > "$HOME/cache"\n'
    yield Recipe(name, script, f"test -e /opt/ale-agents/{name}/bin/hello", "a shell")
    for snapshot in await provider.snapshots():
        if name.replace(".", "-") in snapshot:
            await provider.remove_snapshot(snapshot)


def events() -> tuple[list[tuple[str, dict[str, Any]]], Tell]:
    found: list[tuple[str, dict[str, Any]]] = []
    return found, lambda kind, **data: found.append((kind, data))


async def test_an_agent_is_put_into_the_image_once_and_is_there_in_every_sandbox(
    provider: SandboxProvider, recipe: Recipe
) -> None:
    told, tell = events()
    bakery = Bakery(tell)
    specs = await asyncio.gather(*(bakery.with_agent(recipe, SandboxSpec(), provider) for _ in range(4)))
    assert [kind for kind, _ in told] == ["agent_baked"], "episodes that need the same wait for one"
    assert len({spec.from_snapshot for spec in specs}) == 1
    async with await provider.start_sandbox(specs[0]) as box:
        assert (await box.exec(f"sh {recipe.place}/bin/hello; pwd; ls -A")).stdout == b"hello\n/workspace\n"
        assert (await box.exec(f"ls -d {baking.HOME}")).exit_code != 0, "caches do not stay"
    later, tell = events()
    spec = await Bakery(tell).with_agent(recipe, SandboxSpec(), provider)
    assert spec.from_snapshot == specs[0].from_snapshot
    assert [kind for kind, _ in later] == ["agent_found"], "another run finds it"


async def test_an_image_that_has_the_agent_is_used_as_it_is(provider: SandboxProvider, recipe: Recipe) -> None:
    told, tell = events()
    spec = SandboxSpec()
    assert await Bakery(tell).with_agent(replace(recipe, check="true"), spec, provider) == spec
    assert told == [("agent_found", {"agent": recipe.name, "snapshot": None})]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"script": "echo first\nfalse\necho never"}, r"failed with exit code 1. It needs a shell. .*output: first$"),
        (
            {"check": "echo not here; false"},
            r"succeeded in .* but its check fails.*The check.s output: not here",
        ),
    ],
)
async def test_a_recipe_that_fails_is_a_sentence_with_the_end_of_what_it_said(
    provider: SandboxProvider, recipe: Recipe, changed: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        await Bakery().with_agent(replace(recipe, **changed), SandboxSpec(), provider)
    assert not [name for name in await provider.snapshots() if recipe.name.replace(".", "-") in name]
    assert not provider.sandboxes, "the sandbox that it ran in is gone"  # type: ignore[attr-defined]


async def test_the_hosts_certificates_and_indexes_reach_the_script_and_do_not_stay(
    provider: SandboxProvider, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_INDEX_URL", "UV_DEFAULT_INDEX", "npm_config_registry"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ca.pem").write_text("CERTIFICATES")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example.org/simple")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "https://npm.example.org:8443")
    said = 'mkdir -p "$ALE_AGENT/bin"; cat "$PIP_CERT" > "$ALE_AGENT/bin/hello"\n'
    said += 'echo "$UV_DEFAULT_INDEX $NPM_CONFIG_REGISTRY" >> "$ALE_AGENT/bin/hello"'
    spec = await Bakery().with_agent(replace(recipe, script=said), SandboxSpec(), provider)
    async with await provider.start_sandbox(spec) as box:
        found = (
            await box.exec(f"cat {recipe.place}/bin/hello; env | grep -c -i -e index -e pem; ls {baking.HOME}")
        ).stdout
    assert found == b"CERTIFICATEShttps://index.example.org/simple https://npm.example.org:8443\n0\n"
    allowed = baking.allowed_hosts(replace(recipe, hosts=("a.example.org:443",)))
    assert {"a.example.org:443", "npm.example.org:8443", "index.example.org:443", "*:443"} <= {*allowed}


def test_indexes_of_pips_and_npms_configuration_are_passed_on_but_not_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "NPM_CONFIG_REGISTRY", "npm_config_registry"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://i.example.org/simple\nextra-index-url = file:///srv/x https://j.example.org/\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    (tmp_path / ".npmrc").write_text("//n.example.org/:_authToken=x\nregistry = https://n.example.org/\n")
    found, _ = package_settings()
    assert found["PIP_INDEX_URL"] == found["UV_DEFAULT_INDEX"] == "https://i.example.org/simple"
    assert found["PIP_EXTRA_INDEX_URL"] == found["UV_INDEX"] == "https://j.example.org/"
    assert found["NPM_CONFIG_REGISTRY"] == "https://n.example.org/"


def test_another_recipe_or_image_is_another_snapshot(recipe: Recipe) -> None:
    names = {snapshot_name(recipe, image) for image in (None, "a:1", "b:1")}
    names.add(snapshot_name(replace(recipe, script="true"), None))
    assert len(names) == 4
    assert all(len(name) <= 64 and "." not in name for name in names)


async def test_without_snapshots_an_agent_cannot_be_put_anywhere(recipe: Recipe) -> None:
    async with provider_of("local", isolation="none") as plain:
        with pytest.raises(ConfigError, match="takes a sandbox provider with snapshots and a network"):
            bake_spec(recipe, None, plain)


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 41])
def test_a_recipe_has_a_name_that_a_folder_and_a_snapshot_can_have(name: str) -> None:
    with pytest.raises(ConfigError, match="A recipe cannot be named"):
        Recipe(name, "true", "true", "a shell")
