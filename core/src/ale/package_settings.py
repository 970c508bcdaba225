"""Where programs on this machine have packages from: what the environment, pip's configuration and npm's say of it.

Variables of ALE's own are read in `environment.py`; these belong to others.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Iterator
from pathlib import Path

PASSED_ON = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "UV_DEFAULT_INDEX", "UV_INDEX", "NPM_CONFIG_REGISTRY",
    "npm_config_registry", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
FROM_PIP = {
    "index-url": ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), "extra-index-url": ("PIP_EXTRA_INDEX_URL", "UV_INDEX"),
}  # fmt: skip


def package_settings() -> tuple[dict[str, str], bytes | None]:
    """How programs on this machine reach package indexes: environment variables, and the certificates that they trust.

    The indexes are those of the environment, of pip's configuration and of npm's; what lies in folders of this machine is
    left out. No certificates (None) where the environment names none: then an image's own do.
    """
    found = {**_of_npm(), **_of_pip(), **{name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}}
    for ours, theirs in FROM_PIP.values():
        if ours in found:
            found.setdefault(theirs, found[ours])
    for name in CERTIFICATES:
        path = Path(os.environ.get(name) or "/dev/null")
        if path.is_file():
            return found, path.read_bytes()
    return found, None


def _of_pip() -> dict[str, str]:
    """Indexes in pip's configuration files, the user's before the machine's."""
    found: dict[str, str] = {}
    home = Path.home()
    named = os.environ.get("PIP_CONFIG_FILE")
    machines, users = Path("/etc/pip.conf"), (home / ".pip/pip.conf", home / ".config/pip/pip.conf")
    for path in (machines, *users, *([Path(named)] if named else [])):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError):
            continue
        for option, (name, _) in FROM_PIP.items():
            urls = [url for url in parser.get("global", option, fallback="").split() if url.startswith("http")]
            if urls:
                found[name] = " ".join(urls)
    return found


def _of_npm() -> dict[str, str]:
    """The registry in npm's configuration files."""
    lines = (line for path in (Path("/etc/npmrc"), Path.home() / ".npmrc") for line in _lines(path))
    urls = [line.partition("=")[2].strip() for line in lines if line.partition("=")[0].strip() == "registry"]
    return {"NPM_CONFIG_REGISTRY": urls[-1]} if urls else {}


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
