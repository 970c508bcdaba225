"""Says in one sentence what is wrong with a request, and where, from the errors that pydantic found in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TYPES = {
    "list_type": "a list",
    "bool_type": "true or false",
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "is_instance_of": "a text",
    "none_required": "null",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
"""What a value must be, by pydantic's name of the error."""
SENTENCES = {
    "greater_than_equal": "must be at least {ge}, not {input}",
    "less_than_equal": "must be at most {le}, not {input}",
    "literal_error": "is {input!r}; it may be {expected}",
    "union_tag_invalid": "needs a {discriminator} that is one of {expected_tags}, not {tag!r}",
    "union_tag_not_found": "needs a {discriminator}",
    "unknown_type": "is of type {input!r}, which is not known here",
    "value_error": "{error}",
}
NEEDED = {
    "messages": "must be a list with at least one message",
    "input": "must be a text, or a list with at least one item that says something",
    "function": "must be a function tool with a name",
    "text": "holds no text, and only text is supported",
}
"""The sentence for an object that lacks one of these keys, or has an empty list there."""
KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}


def describe_errors(errors: Sequence[Any], request: Any, above: str = "") -> str:
    """The sentence, without its full stop; `above` is the place of the request in something larger.

    Where the request is read by a union, pydantic lists the errors of each of its models. Those of a model whose
    `type` is not the one that was sent do not count; of the others those deepest in the request are described.
    """
    other_types = [error for error in errors if error["loc"][-1:] == ("type",)]
    models = {error["loc"][:-1] for error in other_types}
    found = [error for error in errors if not any(error["loc"][: len(model)] == model for model in models)]
    found += [{**error, "type": "unknown_type", "loc": error["loc"][:-1]} for error in other_types]
    depth = max(len(place_in(request, error["loc"])) for error in found)
    found = [error for error in found if len(place_in(request, error["loc"])) == depth]
    error = next((error for error in found if error["type"] not in TYPES), found[0])
    kind, value, place = error["type"], error["input"], place_in(request, error["loc"])
    if kind in TYPES:
        wanted = " or ".join(dict.fromkeys(TYPES[error["type"]] for error in found))
        says = f"must be {wanted}, not {value if isinstance(value, float) else kind_of(value)}"
    elif kind in ("missing", "too_short"):
        field = error["loc"][-1] if kind == "missing" or not place else place[-1]
        says = NEEDED.get(field, f"needs '{field}'")
        place = place or ([] if above else [field])
    else:
        says = SENTENCES[kind].format(input=value, **error.get("ctx", {}))
    if not above and len(place) == 1:
        return f"'{place[0]}' {says}"
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return f"{(above + steps).removeprefix('.')} {says}"


def place_in(request: Any, location: Sequence[Any]) -> list[Any]:
    """The steps of pydantic's location that lead into the request; the others are names of a union's models."""
    place = []
    for step in location:
        steps = (
            request.keys() if isinstance(request, Mapping) else range(len(request)) if isinstance(request, list) else ()
        )
        if step in steps:
            place.append(step)
            request = request[step]
    return place


def kind_of(value: Any) -> str:
    """What a JSON value is, in a word."""
    return "null" if value is None else KINDS.get(type(value), type(value).__name__)
