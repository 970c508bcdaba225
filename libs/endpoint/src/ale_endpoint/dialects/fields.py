"""What becomes of each field of a request, by the tables of `field_tables.py`.

1. A table lists, for each object of an API's requests (a *shape*: the request itself, a message, a kind of part),
   what its fields mean here: for a policy's session, and for a call that is forwarded to another server (`upstream`).
2. `check_fields` goes through a request before it is read. A refused field ends it with a sentence that names the
   field; so does a field that the table does not know, if the request is forwarded: nothing is lost silently. A session
   ignores and records what it does not know.
3. It returns the fields of the forwarded request that messages and tools do not hold (`ModelCall.passed_on`).

The table in docs/endpoint.md is made from these tables (`scripts/write_field_table.py`), and a test walks the request
types of the official clients against them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

Server = Literal["session", "upstream"]
"""Who answers a call: a policy's session, or another server to which it is forwarded."""
Use = Literal["used", "carried", "ignored", "refused"]
"""`used`: it is read, and part of what goes to another server. `carried`: it goes to another server as it is, or under
the name in chat completions. `ignored`: it changes nothing, for the reason that the table gives. `refused`: the request
is answered with a 400 that names it."""
OTHERS = "*"
"""The key of a shape's fields that the table does not name."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of a field."""

    session: Use
    upstream: Use
    note: str = ""
    """Why it is ignored or refused, or what it becomes."""
    within: str = ""
    """The shape of the objects in it, if they are looked at."""
    to: str = ""
    """The field of chat completions as which it is carried."""
    harmless: tuple[Any, ...] = ()
    """Values that are never refused, since they ask for what happens anyway."""
    convert: Callable[[Any], Any] | None = None
    """Writes its value as the field `to` has it."""

    def use(self, server: Server) -> Use:
        """What becomes of it where this server answers."""
        return self.session if server == "session" else self.upstream


Shape = Mapping[str, Rule]
Table = Mapping[str, Shape | Rule]
"""Shapes by their names. Objects with a `type` have a shape of each type, `part[text]`; a name may be a pattern, and an
object that is as a whole ignored or refused has a rule in place of fields."""
REQUEST = "request"


def check_fields(table: Table, request: Mapping[str, Any], server: Server) -> dict[str, Any]:
    """Return the fields of chat completions as which fields of a request are carried; none for a session. Raises
    `ValueError` for a field that is refused."""
    carried: dict[str, Any] = {}
    _check(table, table[REQUEST], request, "", server, carried)
    return carried


def _check(
    table: Table, shape: Shape | Rule, value: Mapping[str, Any], place: str, server: Server, carried: dict[str, Any]
) -> None:
    if isinstance(shape, Rule):
        if shape.use(server) == "refused":
            kind = value.get("type")
            raise ValueError(f"{place} of type {kind!r:.60} is refused: {shape.note}")
        return
    for key, item in value.items():
        if item is None:
            continue
        rule = shape.get(key) or shape.get(OTHERS)
        where = f"{place}.{key}" if place else f"'{key}'"
        if rule is None:
            if server == "upstream":
                raise ValueError(
                    f"{where} is not known, and would be lost on the way to the other server; leave it out"
                )
            continue
        use = rule.use(server)
        if use == "refused" and not any(item is each or item == each for each in rule.harmless):
            raise ValueError(f"{where} is refused: {rule.note}")
        if use == "carried" and server == "upstream" and (rule.to or not place):
            name, made = rule.to or key, item if rule.convert is None else rule.convert(item)
            if made is not None:
                carried[name] = made
        if rule.within:
            for step, each in _objects(item):
                found = shape_of(table, rule.within, each)
                if found is not None:
                    _check(table, found, each, f"{place}.{key}{step}".removeprefix("."), server, carried)


def _objects(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects in a value, each with its place there."""
    if isinstance(value, Mapping):
        yield "", value
    elif isinstance(value, list):
        yield from ((f"[{i}]", each) for i, each in enumerate(value) if isinstance(each, Mapping))


def shape_of(table: Table, name: str, value: Mapping[str, Any]) -> Shape | Rule | None:
    """Return the shape of an object, or the rule for it; None if the table does not know it."""
    if name in table:
        return table[name]
    kind = value.get("type")
    kind = kind if isinstance(kind, str) else ""
    exact = table.get(f"{name}[{kind}]")
    if exact is not None:
        return exact
    return next((table[key] for key in patterns(table, name) if fnmatchcase(kind, kind_of(key))), None)


def patterns(table: Table, name: str) -> Iterator[str]:
    """Yield the names of a shape's types, in the order of the table."""
    return (key for key in table if key.startswith(f"{name}["))


def kind_of(key: str) -> str:
    """Return the type, or the pattern of types, in a shape's name."""
    return key.partition("[")[2].removesuffix("]")


def used(note: str = "", within: str = "") -> Rule:
    """It is read."""
    return Rule("used", "used", note, within)


def carried(note: str, to: str = "", convert: Callable[[Any], Any] | None = None, *, session: Use = "ignored") -> Rule:
    """A session ignores it, for the reason in `note`."""
    return Rule(session, "carried", note, to=to, convert=convert)


def ignored(note: str) -> Rule:
    """It changes nothing."""
    return Rule("ignored", "ignored", note)


def refused(note: str, *harmless: Any, session: Use = "refused", upstream: Use = "refused") -> Rule:
    """It is refused, but for harmless values."""
    return Rule(session, upstream, note, harmless=harmless)
