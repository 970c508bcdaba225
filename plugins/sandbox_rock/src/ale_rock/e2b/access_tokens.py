"""Access tokens of single sandboxes: what E2B's SDK sends to a sandbox in the place of its API key.

A token is made of the API key and the sandbox's id, so it is stored nowhere, is good for one sandbox, and ends with the
key. Whoever shows it is treated as the owner of the key, with its rights and limits.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from ale_rock.admin.auth import AccessDenied
from ale_rock.admin.settings import Settings

HEADERS = "x-access-token", "e2b-traffic-access-token"


class AccessTokens:
    """Makes and reads the access tokens of a service."""

    def __init__(self, settings: Settings) -> None:
        self._keys = [each.token.get_secret_value() for each in settings.tokens if each.role != "worker"]

    def issue(self, headers: Mapping[str, str], sandbox_id: str) -> str | None:
        """Return the token of a sandbox for the caller of a request; None where nobody needs one."""
        key = headers.get("x-api-key") or headers.get("authorization", "").partition(" ")[2].strip()
        return _token(key, sandbox_id) if key in self._keys else None

    def exchange(self, headers: Mapping[str, str], sandbox_id: str) -> dict[str, str]:
        """Return the headers of a request with the API key in the place of an access token. Raises `AccessDenied`."""
        shown = [headers[name] for name in HEADERS if headers.get(name)]
        kept = {name: value for name, value in headers.items() if name not in HEADERS}
        if not shown or not self._keys:
            return kept
        for key in self._keys:
            expected = _token(key, sandbox_id).encode()
            if any(hmac.compare_digest(expected, each.encode("utf-8", "replace")) for each in shown):
                return {**kept, "x-api-key": key}
        raise AccessDenied(f"The access token is not one of the sandbox {sandbox_id[:128]}; connect to it again.")


def _token(key: str, sandbox_id: str) -> str:
    return hmac.digest(key.encode(), f"ale rock e2b {sandbox_id}".encode(), "sha256").hex()
