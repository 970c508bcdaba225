"""Reads this machine's settings for package indexes from the environment, pip's configuration and npm's.

ALE's own variables are read in `environment.py`; these belong to other programs.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Iterator
from pathlib import Path

PASSED_ON = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "NPM_CONFIG_REGISTRY",
    "npm_config_registry",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
FROM_PIP = {
    "index-url": ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"),
    "extra-index-url": ("PIP_EXTRA_INDEX_URL", "UV_INDEX"),
}


def package_settings() -> tuple[dict[str, str], bytes | None]:
    """Return how programs reach package indexes: environment variables, and the certificates to trust.

    The indexes come from the environment, pip's configuration and npm's; indexes in folders of this machine are left
    out. The certificates are None if the environment names none; an image's own are then used."""
    found = {**_read_npm(), **_read_pip(), **{name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}}
    for ours, theirs in FROM_PIP.values():
        if ours in found:
            found.setdefault(theirs, found[ours])
    for name in CERTIFICATES:
        path = Path(os.environ.get(name) or "/dev/null")
        if path.is_file():
            return found, path.read_bytes()
    return found, None


def _read_pip() -> dict[str, str]:
    """Read the indexes in pip's configuration files, the user's before the machine's."""
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


def _read_npm() -> dict[str, str]:
    """Read the registry in npm's configuration files."""
    lines = (line for path in (Path("/etc/npmrc"), Path.home() / ".npmrc") for line in _lines(path))
    urls = [line.partition("=")[2].strip() for line in lines if line.partition("=")[0].strip() == "registry"]
    return {"NPM_CONFIG_REGISTRY": urls[-1]} if urls else {}


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
