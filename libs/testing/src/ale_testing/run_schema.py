"""`ale config schema` composes the JSON Schema (draft 2020-12) of a run file from the installed packages.

Each plugin is imported in a separate process (`ale_testing.import_check`), so that for a broken plugin only its own
section is missing."""

from __future__ import annotations

import asyncio
import copy
import sys
from typing import Any

from ale.config.plugin_field import PluginPlace, plugin_places
from ale.registry.installed import PluginInfo, list_plugins
from ale.specs.choice import PluginRules
from ale.specs.kinds import HOOKS, KINDS
from ale_testing.import_check import check_imports
from ale_testing.import_check_child import ImportFindings
from ale_train.config.run import RunConfig

USER_CLASS = {
    "type": "string",
    "pattern": r"\.py(:\w+)?$|^[A-Za-z_][\w.]*:\w+$",
    "description": "A class of your own, such as ./mine.py:Mine or package.module:Mine.",
}
REFERENCE = {"type": "string", "pattern": r"\$\{", "description": "An interpolation, such as ${seed}."}


def run_schema() -> dict[str, Any]:
    """The schema; plugins that cannot be imported are left out, with a line on stderr."""
    definitions: dict[str, Any] = {}
    plugins = _import_all()
    schema = RunConfig.model_json_schema(mode="validation")
    for name in ("PluginChoice", "SelectRule", "MixRule", "Select", "Mix"):
        schema["$defs"].pop(name, None)
    definitions.update(schema.pop("$defs"))
    by_kind: dict[str, list[tuple[PluginInfo, dict[str, Any]]]] = {kind: [] for kind in (*KINDS, HOOKS)}
    for info, probed in plugins:
        by_kind[info.kind].append(
            (info, _lift_definitions(probed.schema, f"{info.kind}.{info.package}.{info.name}", definitions))
        )
    for kind, found in by_kind.items():
        definitions[f"plugin.{kind}"] = _section(found, {})
    for place in plugin_places(RunConfig):
        if place.several is not None:
            definitions[f"rule.{place.kind}"] = _section(by_kind[place.kind], _own_keys(place.several))
        *outer, last = place.path.split(".")
        owner = _section_schema(schema["properties"][outer[0]], definitions) if outer else schema
        about = {key: owner["properties"][last][key] for key in ("description",) if key in owner["properties"][last]}
        owner["properties"][last] = {**about, **_forms(place)}
    schema["properties"]["include"] = {
        "description": "Run files to merge beneath this one, relative to it.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    schema.pop("title")
    schema.pop("required", None)  # an include may bring what this file leaves out
    whole = _with_references({**schema, "$defs": definitions})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ALE run file", **whole}


def _import_all() -> list[tuple[PluginInfo, ImportFindings]]:
    infos = list_plugins()
    sound = [info for info in infos if info.status in ("ok", "shadowed")]
    probes = dict(zip(sound, asyncio.run(check_imports(sound)), strict=True))
    found = []
    for info in infos:
        probed = probes.get(info, ImportFindings(info.reason))
        if probed.schema:
            found.append((info, probed))
        else:
            print(f"left out: {info.kind} '{info.name}' of {info.package}: {probed.problem}", file=sys.stderr)
    return found


def _section_schema(section: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a section with its keys; `section` stands in its place: itself, a reference, or null too."""
    forms = (section, *section.get("anyOf", ()))
    referred = (definitions[form["$ref"].rpartition("/")[2]] if "$ref" in form else form for form in forms)
    found: dict[str, Any] = next(form for form in referred if "properties" in form)
    return found


def _lift_definitions(schema: dict[str, Any], prefix: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A plugin's schema whose own definitions stand among the others, under names of their own."""
    inner = copy.deepcopy(schema)
    own = inner.pop("$defs", {})

    def rename(node: Any) -> Any:
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/$defs/"):
                return {**node, "$ref": f"#/$defs/{prefix}.{reference.removeprefix('#/$defs/')}"}
            return {key: rename(value) for key, value in node.items()}
        return [rename(item) for item in node] if isinstance(node, list) else node

    definitions.update({f"{prefix}.{name}": rename(body) for name, body in own.items()})
    return dict(rename(inner))


def _section(found: list[tuple[PluginInfo, dict[str, Any]]], own_keys: dict[str, Any]) -> dict[str, Any]:
    """A name, or a mapping whose `use` says which plugin's keys stand beside it."""
    mappings: list[dict[str, Any]] = []
    for info, schema in found:
        names = (
            [f"{info.package}:{info.name}"] if info.status == "shadowed" else [info.name, f"{info.package}:{info.name}"]
        )
        mappings.append(
            {
                "type": "object",
                "title": f"{info.name}",
                "description": info.summary,
                "properties": {"use": {"enum": names}, **own_keys, **schema.get("properties", {})},
                "required": ["use", *schema.get("required", ())],
                "additionalProperties": False,
            }
        )
    names = [name for mapping in mappings for name in mapping["properties"]["use"]["enum"]]
    own = {"type": "object", "title": "a class of your own", "properties": {"use": USER_CLASS, **own_keys}}
    return {"anyOf": [{"enum": names}, *mappings, USER_CLASS, own | {"required": ["use"]}]}


def _own_keys(several: type[PluginRules]) -> dict[str, Any]:
    """The keys of a rule that are not the plugin's; a list of one may be written as its item."""
    fields = several.rule().model_json_schema()["properties"]
    return {
        key: {"anyOf": [{"type": "string"}, field], "description": field["description"]}
        if field.get("type") == "array"
        else field
        for key, field in fields.items()
        if key not in ("use", "settings")
    }


def _forms(place: PluginPlace) -> dict[str, Any]:
    """What may stand in a plugin's place."""
    if place.is_list:
        return {"type": "array", "items": {"$ref": f"#/$defs/plugin.{place.kind}"}}
    forms: list[dict[str, Any]] = [{"$ref": f"#/$defs/plugin.{place.kind}"}]
    if place.several is not None:
        key = place.several.key
        entries = {"type": "array", "minItems": 1, "items": {"$ref": f"#/$defs/rule.{place.kind}"}}
        forms.append({"type": "object", "properties": {key: entries}, "required": [key], "additionalProperties": False})
    if place.optional:
        forms += [{"type": "null"}, {"const": "none"}]
    return {"anyOf": forms} if len(forms) > 1 else forms[0]


def _with_references(node: Any) -> Any:
    """Where a number, a truth value or a name from a list may stand, `${...}` may stand too."""
    if isinstance(node, list):
        return [_with_references(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {
        key: value if key in ("default", "enum", "const", "required") else _with_references(value)
        for key, value in node.items()
    }
    scalar = node.get("type") in ("integer", "number", "boolean") or (
        node.get("type") == "string" and {"enum", "pattern"} & set(node)
    )
    if not scalar or node == REFERENCE:
        return node
    about = {key: node.pop(key) for key in ("description", "default", "title") if key in node}
    return {**about, "anyOf": [node, REFERENCE]}
