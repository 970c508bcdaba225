"""The version of the contracts: ranges, and the sentences where one does not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_packages import REWARD, Install

from ale.errors import PluginError
from ale.registry.drivers import load_driver_class
from ale.registry.versions import current_range, describe_mismatch
from ale.specs import kinds

DECLARED = 'api_version = ">=1.0,<1.2"'
MANIFEST = {"plugins": [{"kind": "reward", "name": "fixed", "capabilities": []}]}


@pytest.mark.parametrize("declared", [">=1.0,<1.2", ">=1.0", "~=1.0", "==1.*"])
def test_ranges_that_hold_this_version_fit(declared: str) -> None:
    assert describe_mismatch(declared, "acme") is None


@pytest.mark.parametrize(
    ("declared", "mend"),
    [
        (">=1.1,<1.3", "install a newer ALE: pip install --upgrade ale-core."),
        ("==2.0", "install a newer ALE"),
        (">=0.8,<1.0", "install a release of acme made for 1.0: pip install --upgrade acme."),
        ("==0.9", "install a release of acme made for 1.0"),
        ("<1", "install a release of acme"),
        ("==0.*", "install a release of acme"),
        ("soon", "which is no range of versions such as '>=1.0,<1.2'"),
        ("1.0", "which is no range of versions such as '>=1.0,<1.2'"),
        ("", 'write api_version = ">=1.0,<1.2" in its class'),
    ],
)
def test_a_mismatch_says_which_side_to_renew(declared: str, mend: str) -> None:
    assert mend in (describe_mismatch(declared, "acme") or "")


@given(st.text(max_size=12))
def test_whatever_is_declared_there_is_no_traceback(declared: str) -> None:
    answer = describe_mismatch(declared, "acme")
    assert answer is None or answer.endswith(".")


def test_what_is_made_today_fits_today_and_in_the_next_minor_version(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = current_range()
    assert declared == ">=1.0,<1.2"
    for version, fits in (("0.9", False), ("1.0", True), ("1.1", True), ("1.2", False), ("2.0", False)):
        monkeypatch.setattr(kinds, "API_VERSION", version)
        assert (describe_mismatch(declared, "acme") is None) == fits


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("pass", "does not say which contracts it was made for; write api_version"),
        ('api_version = "1.0"', "declares api_version '1.0', which is no range"),
        (
            'api_version = ">=2.0,<2.2"',
            "was made for version >=2.0,<2.2 of the plugin contracts, this ALE has 1.0; install",
        ),
    ],
)
def test_a_plugin_that_was_not_made_for_these_contracts_is_refused(
    install: Install, written: str, sentence: str
) -> None:
    install("far-away", REWARD.replace(DECLARED, written), manifest=MANIFEST)
    with pytest.raises(PluginError) as refused:
        load_driver_class("reward", "fixed")
    assert f"the reward plugin 'fixed' of far-away 2.1 {sentence}" in str(refused.value)
