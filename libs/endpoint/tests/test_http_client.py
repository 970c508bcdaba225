"""How upstreams are reached: through a proxy where the environment names one."""

from __future__ import annotations

import pytest

from ale.errors import ConfigError
from ale_endpoint.http_client import proxy_for
from ale_endpoint.upstream import Route, Upstream


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


def test_the_environment_names_the_proxy_but_not_for_this_machine(environment: pytest.MonkeyPatch) -> None:
    assert proxy_for("https://host.example/v1") is None
    environment.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    environment.setenv("ALL_PROXY", "other.example:80")
    environment.setenv("NO_PROXY", "inside.example")
    assert proxy_for("https://host.example/v1") == "http://proxy.example:3128"
    assert proxy_for("http://host.example/v1") == "http://other.example:80"
    for here in ("https://localhost/v1", "https://127.0.0.1:8/v1", "https://[::1]/v1", "https://inside.example/v1"):
        assert proxy_for(here) is None


async def test_a_proxy_that_cannot_be_used_is_refused_before_the_first_call(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ALL_PROXY", "socks5://me:secret@proxy.example:1080")
    with pytest.raises(ConfigError, match=r"no HTTP proxy .it begins with socks5://.; set HTTPS_PROXY") as told:
        async with Upstream([Route("https://host.example/v1")]):
            pass
    assert "secret" not in str(told.value)
