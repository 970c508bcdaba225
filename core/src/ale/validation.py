"""Pydantic's complaints as sentences, one a mistake: the YAML path, what is wrong, what is valid, the nearest name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from typing_extensions import is_typeddict  # that of Python 3.11 does not know its TypedDict, which pydantic asks for

from ale.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], data: Mapping[str, Any], where: str = "", beside: Sequence[str] = ()) -> M:
    """`data` as a model; `where` is its YAML path, `beside` keys that are valid there and not the model's.

    Raises `ConfigError` with a line a mistake.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_sentences(model, error, data, where, beside))) from None
    except RecursionError:
        raise ConfigError(f"{where or 'The run file'}: the values are nested too deeply.") from None


def nearest(name: str, names: Iterable[str]) -> str:
    """` Did you mean 'x'?` with the nearest of the names, or nothing."""
    near = difflib.get_close_matches(name, list(names), 1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""


def shown(value: Any) -> str:
    """A value of the user's as it can stand in one line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def one_line(error: object) -> str:
    """What an error says, as one line without its full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def named(error: BaseException) -> str:
    """An error's class and what it says, as one line without its full stop."""
    return f"{type(error).__name__}: {one_line(error)}"


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, also where it may be null; None for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for a in get_args(annotation) if (found := model_in(a)) is not None), None)


def lenient_models(model: type, seen: frozenset[type] = frozenset()) -> Iterator[str]:
    """The names of the models in a `Config`, itself among them, that do not refuse unknown keys.

    Dataclasses and TypedDicts in it count too: their keys are not seen by `describe`, nor by the hints of a mistake.
    """
    if is_dataclass(model) or is_typeddict(model):
        yield model.__qualname__
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or model in seen:
        return
    if model.model_config.get("extra") != "forbid":
        yield model.__qualname__
    for field in model.model_fields.values():
        for inner in _models_in(field.annotation):
            yield from lenient_models(inner, seen | {model})


def _models_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or is_dataclass(annotation) or is_typeddict(annotation)
    ):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _sentences(
    model: type[BaseModel], error: ValidationError, data: Any, where: str, beside: Sequence[str]
) -> list[str]:
    by_path: dict[str, list[str]] = {}
    items = error.errors(include_url=False)
    for item in items:
        if item["type"] == "too_short" and any(len(i["loc"]) > len(item["loc"]) for i in items):
            continue  # follows from a wrong item, which is told by itself
        location = _yaml_location(item["loc"], data, item["type"] == "missing")
        path = ".".join(map(_key, [*([where] if where else []), *location])) or "The run file"
        by_path.setdefault(path, []).append(_complaint(model, item, location, beside))
    # A union complains once a member, all about one value: one sentence.
    return [f"{path}: {'; or '.join(dict.fromkeys(found))}" for path, found in by_path.items()]


def _yaml_location(location: Sequence[int | str], data: Any, missing: bool) -> list[str]:
    """The part of pydantic's location that the user wrote: without the names of union members."""
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
    return part if part.isprintable() and len(part) <= 60 else shown(part)


def _complaint(model: type[BaseModel], item: Any, location: list[str], beside: Sequence[str]) -> str:
    if item["type"] == "extra_forbidden":
        names = [*_fields_at(model, location[:-1]), *(beside if len(location) == 1 else ())]
        hint = _elsewhere(model, location[-1]) or nearest(location[-1], names)
        return f"there is no such key.{hint} Valid here: {', '.join(names) or 'no keys'}."
    if item["type"] == "missing":
        return "this key is missing."
    if item["type"] in ("model_type", "dict_type"):
        return f"must be a mapping of keys to values (it is {shown(item['input'])})."
    if item["type"] in ("tuple_type", "list_type", "set_type", "frozen_set_type"):
        return f"must be a list (it is {shown(item['input'])})."
    message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(".")
    message = one_line(message[:1].lower() + message[1:])
    if item["type"] in ("value_error", "assertion_error"):
        return f"{message}."
    hint = ""
    if item["type"] == "literal_error" and isinstance(item["input"], str):
        hint = nearest(item["input"], re.findall("'([^']*)'", str(item["ctx"]["expected"])))
    return f"{message} (it is {shown(item['input'])}).{hint}"


def _elsewhere(model: type[BaseModel], name: str) -> str:
    """Where in the model the very same key is valid."""
    places = [row[0] for row in describe(model) if row[0].rpartition(".")[2] == name and ".N." not in row[0]]
    return f" There is {' and '.join(places)}." if 1 <= len(places) <= 3 else ""


def _fields_at(model: type[BaseModel], location: Iterable[str]) -> list[str]:
    """The valid keys at a place inside a model."""
    current: type[BaseModel] | None = model
    for part in location:
        field = current.model_fields.get(part) if current is not None else None
        current = model_in(field.annotation) if field is not None else current
    return list(current.model_fields) if current is not None else []


def describe(
    model: type[BaseModel], prefix: str = "", plugin: type[BaseModel] | None = None, given: BaseModel | None = None
) -> list[tuple[str, ...]]:
    """Every key of a model: (path, type, default, meaning), sections opened; those made of `plugin` are kept whole.

    The keys of a section of which there is a list stand below it, as `list.N.key`.

    Defaults are those of `given`, the default of the section itself, where it has one.
    """
    rows: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        inner = model_in(field.annotation)
        default = field.get_default(call_default_factory=True) if given is None else getattr(given, name)
        if inner is not None and inner is not plugin and _is_section(field.annotation):
            rows += describe(inner, f"{prefix}{name}.", plugin, default if isinstance(default, inner) else None)
            continue
        value = default.use if isinstance(default, BaseModel) and hasattr(default, "use") else default
        kind = "plugin" if plugin is not None and inner is plugin else _type_name(field.annotation)
        default_text = "required" if field.is_required() else "null" if value is None else str(value)
        rows.append((f"{prefix}{name}", kind, default_text, one_line(field.description or "") + "."))
        if (
            get_origin(field.annotation) is tuple
            and inner is not None
            and (plugin is None or not issubclass(inner, plugin))
        ):
            rows += describe(inner, f"{prefix}{name}.N.", plugin)
    return rows


def _is_section(annotation: Any) -> bool:
    """A model, or a model that may be null; a list of models is a value."""
    members = [a for a in get_args(annotation) if a is not type(None)] or [annotation]
    return len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], BaseModel)


def _type_name(annotation: Any) -> str:
    text = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    text = re.sub(r"Literal\[([^\]]*)\]", lambda m: m[1].replace("'", "").replace(", ", " | "), text)
    return re.sub(r"\b(?:[a-z_]\w*\.)+", "", text).replace("NoneType", "null").replace("None", "null")
