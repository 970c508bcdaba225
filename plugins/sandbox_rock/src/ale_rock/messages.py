"""The messages of `ale rock serve` and `ale rock worker`, without tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from pydantic import SecretStr

from ale.cli.messages import configure_messages


def show_messages(tokens: Iterable[SecretStr | None]) -> None:
    """Print the messages of this process, without these tokens."""
    known = [token.get_secret_value() for token in tokens if token is not None]

    def without_tokens(text: str) -> str:
        for token in known:
            text = text.replace(token, "[token]")
        return text

    configure_messages(lambda text: print(text, file=sys.stderr, flush=True), without_tokens)
