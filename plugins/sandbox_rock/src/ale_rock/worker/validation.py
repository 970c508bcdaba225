"""Checks of values in requests; a wrong value is a `RockError` with a sentence."""

from __future__ import annotations

from ale.specs.sandbox import AGENT, TESTS
from ale_rock.schemas import RockError


def readable(text: str) -> str:
    """Return a text that UTF-8 can hold: the bytes of a path that cannot are written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def check_path(path: str) -> str:
    """Return a path that a sandbox can take. Inside it, the rights of its user apply."""
    if not path or "\0" in path or len(path) > 4096:
        raise RockError(f"{path[:100]!r} is no path; it must have 1 to 4096 characters and no NUL byte.")
    return path


def check_env(env: dict[str, str]) -> dict[str, str]:
    """Return environment variables that a program can take."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise RockError(
                f"{name[:100]!r} is no environment variable: names have no '=', and nothing has a NUL byte."
            )
    return env


def check_user(user: str) -> str:
    """Return a role that commands and files can have."""
    if user not in (AGENT, TESTS):
        raise RockError(f"user must be '{AGENT}' or '{TESTS}', not {user[:100]!r}.")
    return user
