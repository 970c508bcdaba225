"""Shows a pydantic field on the API pages by its default and its description (mkdocs.yml names this file).

A field is written `name: type = Field(default, description="...")`. Without this, its page would print the call. The
package griffe-pydantic does the same, but fails on a validator of fields that only subclasses have
(`check_fields=False`).
"""

from __future__ import annotations

import ast
from typing import Any

import griffe


class FieldDescriptions(griffe.Extension):
    """Takes default and docstring of an attribute from its `Field(...)`."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Read the call once griffe has the attribute."""
        call = getattr(node, "value", None)
        if not isinstance(call, ast.Call) or getattr(call.func, "id", "") not in ("Field", "field"):
            return
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        attr.value = _default(call, named)
        description = named.get("description")
        if description is not None and attr.docstring is None:
            attr.docstring = griffe.Docstring(_text(description), parent=attr)


def _default(call: ast.Call, named: dict[str | None, ast.expr]) -> str | None:
    """Return the default as text; None for a field that must be given."""
    if "default_factory" in named:
        return f"{ast.unparse(named['default_factory'])}()"
    default = call.args[0] if call.args else named.get("default")
    return None if default is None else ast.unparse(default)


def _text(description: ast.expr) -> str:
    """Return a description; one that is no literal is a constant of the module, and its name is shown."""
    try:
        return str(ast.literal_eval(description))
    except ValueError:
        return f"See `{ast.unparse(description)}`."
