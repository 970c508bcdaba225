"""These tests check the plugins that are installed with ALE: their list, and that settings import no heavy library."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ale.registry.installed import list_plugins


def test_the_default_plugins_are_listed_with_what_their_packages_and_classes_say() -> None:
    found = {(i.kind, i.name): i for i in list_plugins()}
    for kind, name in (("sandbox", "local"), ("engine", "torch"), ("algorithm", "ipa"), ("tasks", "bash")):
        info = found[kind, name]
        assert info.status == "ok"
        assert info.summary
        assert info.api_version == ">=1.0,<1.2"
        assert info.package.startswith("ale-plugin-")


def test_every_plugin_of_ours_has_a_summary_of_its_own() -> None:
    ours = [i for i in list_plugins() if i.package.startswith("ale-")]
    assert len({i.summary for i in ours}) == len(ours) > 30
    for info in ours:
        assert 20 < len(info.summary) < 140, info
        assert info.summary.endswith("."), info


@pytest.mark.parametrize(
    ("kind", "name"),
    [("trainer", "torch"), ("engine", "torch"), ("algorithm", "ipa"), ("algorithm", "pg"), ("algorithm", "sft")],
)
def test_settings_of_plugins_that_compute_are_checked_without_what_they_compute_with(kind: str, name: str) -> None:
    load = f"load_driver_class('{kind}', '{name}').Config()"
    code = f"import sys; from ale.registry.drivers import load_driver_class; {load}"
    heavy = ("torch", "transformers", "tokenizers", "safetensors")
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint([m for m in {heavy} if m in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
