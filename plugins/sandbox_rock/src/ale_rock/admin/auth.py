"""Who the caller of a request is, and what this caller may do.

1. A token is sent as `Authorization: Bearer`, `X-API-Key`, or `XRL-Authorization: Bearer`. Only its digest is looked
   up, so the time that this takes reveals nothing about the tokens that exist.
2. A token with a user's name sees that user's sandboxes alone. Another's sandbox looks like one that does not exist.
3. A token of the role user bounds the priority of what it starts, and where tokens name namespaces, its namespace: so
   no user takes another's share of the queue.
4. Without tokens, everybody on this machine is admin; the settings allow that on a loopback address only. A browser is
   kept out by the headers `Host` and `Origin`, which must then be this machine's own and the service's own page.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ale_rock.admin.record import Record
from ale_rock.admin.settings import Role, Settings, Token, is_loopback

LONGEST = 256


class AccessDenied(Exception):
    """The caller may not do this; `status` is the HTTP status where there is no envelope."""

    def __init__(self, sentence: str, status: int = 401) -> None:
        super().__init__(sentence)
        self.sentence, self.status = sentence, status


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. It sees the sandboxes of `user`; None: those of all users."""

    role: Role
    user: str | None
    acts_for: str | None
    """The user to whom sandboxes that it starts belong."""
    experiment: str | None = None
    namespace: str | None = None
    priority: int = 100
    """The highest priority that its sandboxes may have."""

    def sees(self, record: Record) -> bool:
        """Whether a sandbox exists for this caller."""
        return self.user is None or record.user == self.user


class Gate:
    """Admits callers by their tokens."""

    def __init__(self, settings: Settings) -> None:
        self._key = hashlib.sha256(b"ale rock").digest()
        self._tokens = {self._digest(each.token.get_secret_value()): each for each in settings.tokens}
        self._are_named = any(each.namespaces for each in settings.tokens)
        self._rate, self._burst = settings.requests_per_s, settings.burst
        self._spent: dict[bytes, tuple[float, float]] = {}

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode("utf-8", "surrogateescape"), "sha256")

    def admit(self, headers: Mapping[str, str], *roles: Role) -> Caller:
        """Return who calls. Raises `AccessDenied`."""
        user, experiment, namespace = (
            headers.get(name) or None for name in ("x-user-id", "x-experiment-id", "x-namespace")
        )
        for value in (user, experiment, namespace):
            if value is not None and (len(value) > LONGEST or not value.isprintable()):
                raise AccessDenied(
                    "A header that names a user, experiment or namespace is not printable, or longer than "
                    f"{LONGEST} characters.",
                    400,
                )
        if not self._tokens:
            host = headers.get("host", "")
            if not is_loopback(host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host):
                raise AccessDenied(
                    "Nobody needs a token here, so only requests to this machine by its own name are answered; the "
                    f"header Host says {host[:LONGEST]!r}.",
                    403,
                )
            if headers.get("origin", f"http://{host}").partition("://")[2] != host:
                raise AccessDenied("Nobody needs a token here, so no page of another site may send requests.", 403)
            return Caller("admin", None, user, experiment, namespace)
        shown = [self._digest(token) for token in _shown(headers).values()]
        if not shown:
            raise AccessDenied(
                "This service needs a token: send it as `Authorization: Bearer TOKEN` or `X-API-Key: TOKEN`."
            )
        digest = next((each for each in shown if each in self._tokens), shown[0])
        token = self._tokens.get(digest)
        if token is None:
            raise AccessDenied("The token is not one of this service's.")
        if token.role not in roles:
            raise AccessDenied(
                f"A token of the role {token.role} may not do this; it is for {' or '.join(roles)}.", 403
            )
        if token.role == "user":
            self._spend(digest)
        if token.user is not None and user is not None and user != token.user and token.role != "admin":
            raise AccessDenied(
                f"X-User-Id says {user!r}, and the token belongs to {token.user!r}; leave the header out.", 403
            )
        if token.role == "admin":
            return Caller(token.role, None, user or token.user, experiment, namespace)
        if self._are_named:
            namespace = self._namespace(token, namespace)
        return Caller(token.role, token.user, user or token.user, experiment, namespace, token.priority)

    @staticmethod
    def _namespace(token: Token, asked: str | None) -> str | None:
        """Return the namespace of a caller whose token decides that. Raises `AccessDenied`."""
        if asked is not None and asked not in token.namespaces:
            own = ", ".join(token.namespaces) or "none"
            raise AccessDenied(f"The namespace {asked!r} is not one of this token's; it has {own}.", 403)
        return asked or next(iter(token.namespaces), None)

    def headers_with_tokens(self, headers: Mapping[str, str]) -> set[str]:
        """Return the headers that hold a token of this service: no program in a sandbox may see them."""
        return {name for name, token in _shown(headers).items() if self._digest(token) in self._tokens}

    def _spend(self, digest: bytes) -> None:
        """Take a request out of the token's bucket, which fills at a steady rate. Raises `AccessDenied` if it is
        empty."""
        if self._rate is None:
            return
        now = time.monotonic()
        left, at = self._spent.get(digest, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._rate)
        if left < 1:
            wait_s = (1 - left) / self._rate
            raise AccessDenied(
                f"These are more than {self._rate:g} requests a second; come back in {wait_s:.2f} s.", 429
            )
        self._spent[digest] = (left - 1, now)

    def charge(self, headers: Mapping[str, str], more: int) -> None:
        """Count a request as `more` further ones; the requests that follow it have to wait longer."""
        for digest in map(self._digest, _shown(headers).values()):
            if digest in self._spent:
                left, at = self._spent[digest]
                self._spent[digest] = (left - more, at)


def _shown(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the tokens in the headers, by header; one may be meant for a program behind this service."""
    shown = {}
    for name in ("authorization", "xrl-authorization"):
        scheme, _, token = headers.get(name, "").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            shown[name] = token.strip()
    if headers.get("x-api-key"):
        shown["x-api-key"] = headers["x-api-key"]
    return shown
