"""Lists the keys of a model: of a run file, or of a plugin's section."""

from __future__ import annotations

import re
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from ale.registry.validation import is_section, model_in, one_line_error, plugin_mark
from ale.specs.choice import PluginChoice


def describe_keys(model: type[BaseModel], prefix: str = "", given: BaseModel | None = None) -> list[tuple[str, ...]]:
    """Return every key of a model as (path, type, default, meaning): sections are expanded, plugins' sections are not.

    The keys of a section in a list have paths such as `list.N.key`.

    Defaults are those of `given`, the default of the section itself, if it has one.
    """
    rows: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        inner, is_plugin = model_in(field.annotation), plugin_mark(field) is not None
        default = field.get_default(call_default_factory=True) if given is None else getattr(given, name)
        if inner is not None and not is_plugin and is_section(field.annotation):
            rows += describe_keys(inner, f"{prefix}{name}.", default if isinstance(default, inner) else None)
            continue
        kind = "plugin" if is_plugin else _type_name(field.annotation)
        default_text = "required" if field.is_required() else "null" if default is None else str(default)
        rows.append((f"{prefix}{name}", kind, default_text, one_line_error(field.description or "") + "."))
        rows += _keys_beside_plugins(field.annotation, f"{prefix}{name}.") if is_plugin else ()
        if get_origin(field.annotation) is tuple and inner is not None and not is_plugin:
            rows += describe_keys(inner, f"{prefix}{name}.N.")
    return rows


def _keys_beside_plugins(annotation: Any, prefix: str) -> list[tuple[str, ...]]:
    """Return the keys of a section that names a plugin which are not the plugin's, such as `tasks.overlong`."""
    forms = get_args(annotation) or (annotation,)
    choice = next((form for form in forms if isinstance(form, type) and issubclass(form, PluginChoice)), PluginChoice)
    known = {f"{prefix}{name}" for name in PluginChoice.model_fields}
    return [row for row in describe_keys(choice, prefix) if row[0] not in known]


def _type_name(annotation: Any) -> str:
    holder = type("Holder", (), {"__annotations__": {"it": annotation}})
    annotation = get_type_hints(holder)["it"]  # without the validators and other marks of `Annotated`
    text = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    text = re.sub(r"Literal\[([^\]]*)\]", lambda m: m[1].replace("'", "").replace(", ", " | "), text)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+", "", text).replace("NoneType", "null").replace("None", "null")
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | null", text)
