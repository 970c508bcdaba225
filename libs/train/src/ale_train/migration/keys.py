"""Explains keys that a run file does not have, where another framework has them.

1. A key matches a name of the table where one ends with the other: `rollout.n` and `trainer.optim.lr` are parts of
   verl's and prime-rl's longer names, and `rl.entropy_coef` ends with a flat name. A key of one plain word matches
   only a name that is that word, because `name` or `path` may mean anything.
2. The name that has the most parts in common with the key is taken; if those of several settings do, none is.
3. A whole section of another framework (`actor_rollout_ref: {...}`) is explained key by key; other sections, such as a
   misspelt one of ours, are not looked into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from ale_train.migration.table import Row, rows

NO_SUCH_KEY = "there is no such key"
Path = tuple[str, ...]


def explain_key(path: Path, value: Any) -> list[tuple[Path, str]] | None:
    """Return a sentence for each key at and below an unknown key, or None if none of them is known elsewhere."""
    found = [(leaf, find_name(leaf), inner) for leaf, inner in _leaves(path, value)]
    if not any(name for _, name, _ in found):
        return None
    return [(leaf, _describe(name, inner) if name else f"{NO_SUCH_KEY}.") for leaf, name, inner in found]


def find_name(path: Path) -> tuple[Row, str] | None:
    """Return the row of the table and the name in it that a key matches best; None for a key that is the same here."""
    best, found = 0, list[tuple[Row, str]]()
    for parts, row, name in _index():
        shared = _shared_parts(path, parts)
        if shared > best:
            best, found = shared, []
        if shared and shared == best and all(row is not other for other, _ in found):
            found.append((row, name))
    return found[0] if len(found) == 1 and ".".join(path) not in found[0][0].here else None


@cache
def _index() -> tuple[tuple[Path, Row, str], ...]:
    """Return every name as (parts, row, name)."""
    return tuple((tuple(name.split(".")), row, name) for row in rows() for name in row.all_names)


@cache
def _sections() -> frozenset[str]:
    """Return the names of other frameworks' sections."""
    return frozenset(part for parts, _, _ in _index() for part in parts[:-1])


def _shared_parts(path: Path, parts: Path) -> int:
    """Return how many parts a key shares with a name that it matches, tripled; 0 if it does not match.

    A key that is the whole name counts one more, and a name of all keys below a section one less.
    """
    if parts[-1] == "*":
        section = parts[:-1]
        below = any(path[i : i + len(section)] == section for i in range(len(path)))
        return 3 * len(section) - 1 if below else 0
    shared = min(len(path), len(parts))
    if path[-shared:] != parts[-shared:]:
        return 0
    if len(path) == 1 < len(parts) and "_" not in path[0]:
        return 0
    return 3 * shared + (path == parts)


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the keys below a key, or the key itself if its value is no section of another framework."""
    if isinstance(value, dict) and value and path[-1] in _sections() and not find_name(path):
        for key, inner in value.items():
            yield from _leaves((*path, str(key)), inner)
    else:
        yield path, value


def _describe(found: tuple[Row, str], value: Any) -> str:
    row, name = found
    sources = "; ".join(f"{', '.join(frameworks)}: {same}" for same, frameworks in row.homonyms(name).items())
    source = f" ({sources})" if sources else ""
    if row.here:
        plugins = f" of {_join(row.of)}" if row.of else ""
        start = f"{NO_SUCH_KEY}. Here it is {_join(row.here)}{plugins}{source}."
    else:
        start = f"{NO_SUCH_KEY}, and nothing like it{source}."
    meant = row.values.get(str(value).lower(), "")
    return " ".join(part for part in (start, f"For {value}: {meant}" if meant else "", row.say) if part)


def _join(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
