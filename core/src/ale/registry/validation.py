"""Turns pydantic's errors into sentences, one for each mistake: YAML path, what is wrong, what is valid."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from ale.errors import AleError, ConfigError, PluginError
from ale.registry.foreign_code import catch_all
from ale.registry.hints import ask_hints

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Mistake = tuple[tuple[str, ...], str]
"""A path below a section, and a sentence."""
MISTAKE_TYPE = "mistake"
"""The type of the pydantic errors whose message is a sentence already."""
BEGINNING, UNRELATED = 3, 4
_END = object()


class Mistakes(ConfigError):
    """All mistakes of a section, one on each line; `found` has their paths below it."""

    def __init__(self, found: Sequence[Mistake], where: str = "") -> None:
        self.found = tuple(found)
        super().__init__("\n".join(f"{_path(where, path)}: {sentence}" for path, sentence in found))

    def as_validation_error(self, above: tuple[str, ...] = ()) -> ValidationError:
        """Return the error that a validator in a larger model raises, so that pydantic puts its path before these."""
        details: list[InitErrorDetails] = []
        for path, sentence in self.found:
            text = sentence.encode("utf-8", "backslashreplace").decode()
            error = PydanticCustomError(MISTAKE_TYPE, "{sentence}", {"sentence": text})
            details.append({"type": error, "loc": (*above, *path), "input": None})
        return ValidationError.from_exception_data("section", details)


@contextmanager
def add_place(where: str) -> Iterator[None]:
    """Put a place before the message of an ALE error."""
    try:
        yield
    except AleError as error:
        raise type(error)(f"{where}: {error}" if where else str(error)) from error.__cause__


@contextmanager
def as_plugin_error(what: str, log: logging.Logger | None = None) -> Iterator[None]:
    """Turn whatever a plugin raises that is no `AleError` into a `PluginError` that begins with `what`; its traceback
    goes to `log`. Ctrl-C and genuine cancellations pass (see `ale.registry.foreign_code`)."""
    with catch_all() as caught:
        yield
    for error in caught:
        if isinstance(error, AleError):
            raise error
        if log is not None:
            log.error(what, exc_info=error)
        raise PluginError(f"{what}: {describe_error(error)}.") from error


def read_all(what: str, make: Callable[[], Iterable[T]]) -> Iterator[T]:
    """Yield what a plugin yields, guarded as by `as_plugin_error`."""
    with as_plugin_error(what):
        items = iter(make())
    while True:
        with as_plugin_error(what):
            item = next(items, _END)
        if item is _END:
            return
        yield item  # type: ignore[misc]  # it is no `_END`


def validate(model: type[M], data: Mapping[str, Any], where: str = "", beside: Sequence[str] = ()) -> M:
    """Return `data` as a model; `where` is its YAML path, `beside` lists valid keys that are not the model's.

    Raises `Mistakes`.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise Mistakes(_mistakes(model, error, data, beside), where) from None
    except RecursionError:
        raise Mistakes([((), "the values are nested too deeply.")], where) from None


def nearest_hint(name: str, names: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` with the name that this is a misspelling or alone the beginning of, or nothing."""
    edits = {other: _count_edits(*(re.sub(r"[\W_]", "", word).lower() for word in (name, other))) for other in names}
    near = [other for other, count in edits.items() if count == min(edits.values()) < UNRELATED]
    return f" Did you mean '{near[0]}'?" if len(near) == 1 or (near and edits[near[0]] < BEGINNING) else ""


def _count_edits(typed: str, name: str) -> int:
    """Return how many letters are wrong, missing, added or swapped: at most one, in words of seven letters two. Beyond
    that, `BEGINNING` if `name` begins with what was typed, else `UNRELATED`."""
    most = min(2, (max(len(typed), len(name)) + 1) // 4)
    beyond = BEGINNING if len(typed) >= 4 and name.startswith(typed) else UNRELATED
    if abs(len(typed) - len(name)) > most:
        return beyond
    steps = difflib.SequenceMatcher(None, typed, name, autojunk=False).get_opcodes()
    edits = sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in steps if tag != "equal")
    edits -= edits > 1 and sorted(typed) == sorted(name)  # two letters that are swapped
    return edits if edits <= most else beyond


def format_value(value: Any) -> str:
    """Return a value of the user's in a form that fits on one line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def one_line_error(error: object) -> str:
    """Return an error's message as one line without its full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def describe_error(error: BaseException) -> str:
    """Return an error's class and message as one line without its full stop."""
    return f"{type(error).__name__}: {one_line_error(error)}"


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the pydantic model of a field that holds a section (or null); None for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for a in get_args(annotation) if (found := model_in(a)) is not None), None)


@cache
def lenient_model(model: type[BaseModel]) -> str | None:
    """Return the name of a model in a `Config`, itself included, that does not refuse unknown keys."""
    with suppress(PydanticInvalidForJsonSchema):
        schema = model.model_json_schema()
        for name, part in {**schema.get("$defs", {}), model.__qualname__: schema}.items():
            if "properties" in part and part.get("additionalProperties") is not False:
                return str(name)
    return None


def _mistakes(model: type[BaseModel], error: ValidationError, data: Any, beside: Sequence[str]) -> list[Mistake]:
    by_path: dict[tuple[str, ...], list[str]] = {}
    items = error.errors(include_url=False)
    for item in items:
        if item["type"] == "too_short" and any(len(i["loc"]) > len(item["loc"]) for i in items):
            continue  # it follows from a wrong item, which is reported separately
        if item["type"] == MISTAKE_TYPE:
            by_path.setdefault(tuple(map(str, item["loc"])), []).append(item["msg"])
            continue
        location = _yaml_location(item["loc"], data, item["type"] == "missing")
        known = ask_hints("keys", tuple(location), item["input"]) if item["type"] == "extra_forbidden" else None
        for path, sentence in known or [(location, _describe_mistake(model, item, location, beside))]:
            by_path.setdefault(tuple(path), []).append(sentence)
    # For a union, pydantic reports each member's complaint about one value: they become one sentence.
    return [(path, "; or ".join(dict.fromkeys(found))) for path, found in by_path.items()]


def _path(where: str, path: Iterable[str]) -> str:
    return ".".join([*([where] if where else []), *map(_key, path)]) or "The run file"


def _yaml_location(location: Sequence[int | str], data: Any, missing: bool) -> list[str]:
    """Return the part of pydantic's location that the user wrote: without the names of union members."""
    kept: list[str] = []
    for i, part in enumerate(location):
        inside = data.keys() if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
        if part in inside:
            data = data[part]
        elif not (missing and i == len(location) - 1):
            continue
        kept.append(str(part))
    return kept


def _key(part: str) -> str:
    return part if part.isprintable() and len(part) <= 60 else format_value(part)


def _describe_mistake(model: type[BaseModel], item: Any, location: list[str], beside: Sequence[str]) -> str:
    if item["type"] == "extra_forbidden":
        names = [*_model_at(model, location[:-1]).model_fields, *(beside if len(location) == 1 else ())]
        hint = _paths_of_key(model, location[-1]) or nearest_hint(location[-1], names)
        return f"there is no such key.{hint} Valid here: {', '.join(names) or 'no keys'}."
    if item["type"] == "missing":
        field = _model_at(model, location[:-1]).model_fields.get(location[-1])
        mark = plugin_mark(field) if field is not None else None
        return f"this key is missing{'; ' + mark.when_missing() if mark is not None else ''}."
    if item["type"] in ("model_type", "dict_type"):
        return f"must be a mapping of keys to values (it is {format_value(item['input'])})."
    if item["type"] in ("tuple_type", "list_type", "set_type", "frozen_set_type"):
        return f"must be a list (it is {format_value(item['input'])})."
    message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(".")
    message = one_line_error(message[:1].lower() + message[1:])
    if item["type"] in ("value_error", "assertion_error"):
        return f"{message}."
    hint = ""
    if item["type"] == "literal_error" and isinstance(item["input"], str):
        hint = nearest_hint(item["input"], re.findall("'([^']*)'", str(item["ctx"]["expected"])))
    return f"{message} (it is {format_value(item['input'])}).{hint}"


def _paths_of_key(model: type[BaseModel], name: str) -> str:
    """Return where in the model the same key is valid."""
    places = [path for path in key_paths(model) if path.rpartition(".")[2] == name]
    return f" There is {' and '.join(places)}." if 1 <= len(places) <= 3 else ""


def _model_at(model: type[BaseModel], location: Iterable[str]) -> type[BaseModel]:
    """Return the model at a place inside a model, or the innermost one on the way there."""
    for part in location:
        field = model.model_fields.get(part)
        model = (model_in(field.annotation) if field is not None else None) or model
    return model


def plugin_mark(field: FieldInfo) -> Any:
    """Return the marker of a field that names plugins (`ale.config.plugin_field.PluginField`)."""
    return next((mark for mark in field.metadata if hasattr(mark, "when_missing")), None)


def key_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the path of every key of a model: sections are expanded, plugins' sections and lists are not."""
    for name, field in model.model_fields.items():
        inner = model_in(field.annotation)
        if inner is not None and plugin_mark(field) is None and is_section(field.annotation):
            yield from key_paths(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def is_section(annotation: Any) -> bool:
    """Return whether it is a model, or a model that may be null; a list of models is a plain value."""
    members = [a for a in get_args(annotation) if a is not type(None)] or [annotation]
    return len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], BaseModel)
