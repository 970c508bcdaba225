"""The version of the contracts: ranges, the sentences, and the path of one minor version on which old forms still work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strangers import REWARD, Install

from ale.errors import PluginError
from ale.plugins import load_driver_class
from ale.specs import kinds
from ale.versions import ContractDeprecation, current_range, deprecated_form, mismatch

MADE_FOR_1_0 = REWARD.replace('api_version = ">=1.1,<1.3"', 'api_version = "1.0"')
UNDECLARED = REWARD.replace('api_version = ">=1.1,<1.3"', "pass")
MANIFEST_1_0 = {"api_version": "1.0", "plugins": [{"kind": "reward", "name": "fixed", "capabilities": []}]}


@pytest.mark.parametrize("declared", ["", "1.0", "1.1", ">=1.1,<1.3", ">=1.0", "~=1.1", "==1.*"])
def test_ranges_that_hold_this_version_fit(declared: str) -> None:
    assert mismatch(declared, "acme") is None


@pytest.mark.parametrize(
    ("declared", "mend"),
    [
        (">=1.2,<1.4", "install a newer ALE: pip install --upgrade ale-core."),
        ("2.0", "install a newer ALE"),
        ("1.2", "install a newer ALE"),
        (">=0.8,<1.1", "install a release of acme made for 1.1: pip install --upgrade acme."),
        ("0.9", "install a release of acme made for 1.1"),
        ("<1", "install a release of acme"),
        ("==0.*", "install a release of acme"),
        ("soon", "which is no range of versions such as '>=1.1,<1.3'"),
    ],
)
def test_a_mismatch_says_which_side_to_renew(declared: str, mend: str) -> None:
    assert mend in (mismatch(declared, "acme") or "")


@given(st.text(max_size=12))
def test_whatever_is_declared_there_is_no_traceback(declared: str) -> None:
    answer = mismatch(declared, "acme")
    assert answer is None or answer.endswith(".")


def test_what_is_made_today_fits_today_and_in_the_next_minor_version(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = current_range()
    assert declared == ">=1.1,<1.3"
    assert deprecated_form(declared) is None
    for version, fits in (("1.0", False), ("1.1", True), ("1.2", True), ("1.3", False), ("2.0", False)):
        monkeypatch.setattr(kinds, "API_VERSION", version)
        assert (mismatch(declared, "acme") is None) == fits


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (MADE_FOR_1_0, "declares the single api_version '1.0'; write the range \">=1.0,<1.2\""),
        (UNDECLARED, 'does not say which contracts it was made for; write api_version = ">=1.1,<1.3" in its class'),
    ],
)
def test_a_plugin_made_for_1_0_works_in_1_1_with_a_warning_that_says_what_to_write(
    install: Install, source: str, what: str
) -> None:
    install("far-away", source, manifest=MANIFEST_1_0)
    with pytest.warns(ContractDeprecation) as caught:
        cls = load_driver_class("reward", "fixed")
    assert cls.__name__ == "Fixed"
    (warning,) = caught
    assert str(warning.message) == (
        f"the reward plugin 'fixed' of far-away 2.1 {what}; from contracts 1.2 on it is refused."
    )


def test_a_plugin_made_for_1_0_is_refused_by_1_2(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("far-away", MADE_FOR_1_0, manifest=MANIFEST_1_0)
    monkeypatch.setattr(kinds, "API_VERSION", "1.2")
    with pytest.raises(PluginError, match=r"was made for version 1\.0 of the plugin contracts, this ALE has 1\.2; "):
        load_driver_class("reward", "fixed")


def test_a_user_sees_the_warning_once_and_an_author_sees_it_in_the_check(install: Install, tmp_path: Path) -> None:
    install("far-away", MADE_FOR_1_0, manifest=MANIFEST_1_0)
    file = tmp_path / "run.yaml"
    file.write_text("tasks: bash\nreward: fixed\nengine: {use: scripted, answers: [x]}\ntrainer: null\n")
    ale = Path(sys.executable).with_name("ale")
    done = subprocess.run([ale, "config", "validate", file], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [
        "warning: the reward plugin 'fixed' of far-away 2.1 declares the single api_version '1.0'; "
        'write the range ">=1.0,<1.2"; from contracts 1.2 on it is refused.'
    ]
    checked = subprocess.run([ale, "plugins", "check", "--kind", "reward", "--json"], capture_output=True, check=True)
    (found,) = [p for p in json.loads(checked.stdout) if p["name"] == "fixed"]
    assert found["ok"]
    assert "single api_version '1.0'" in found["warnings"][0]
