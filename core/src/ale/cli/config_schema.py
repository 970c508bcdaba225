"""`ale config --schema`: JSON Schema (draft 2020-12) of a run file, composed from what is installed.

Each plugin is imported in a process of its own (`ale.probe`), so that a broken one costs its section and no more.
"""

from __future__ import annotations

import asyncio
import copy
import sys
from typing import Any

from ale.config_base import OWN_KEYS, RULES_KEY, PluginRule
from ale.installed import PluginInfo, list_plugins
from ale.probe import Probed, probe
from ale.run_config import RunConfig
from ale.run_file import PLUGIN_PATHS
from ale.sections import OPTIONAL_PLUGINS
from ale.specs.kinds import HOOKS, KINDS
from ale.validation import model_in

REFERENCE = {"type": "string", "pattern": r"\$\{", "description": "An interpolation, such as ${seed}."}


def run_schema() -> dict[str, Any]:
    """The schema; plugins that cannot be imported are left out, with a line on stderr."""
    definitions: dict[str, Any] = {}
    plugins = asyncio.run(_probed())
    schema = RunConfig.model_json_schema(mode="validation")
    for name in ("PluginChoice", "PluginRule", "PluginRules"):
        schema["$defs"].pop(name, None)
    definitions.update(schema.pop("$defs"))
    by_kind: dict[str, list[tuple[PluginInfo, dict[str, Any]]]] = {kind: [] for kind in (*KINDS, HOOKS)}
    for info, probed in plugins:
        by_kind[info.kind].append(
            (info, _lifted(probed.schema, f"{info.kind}.{info.package}.{info.name}", definitions))
        )
    for kind, found in by_kind.items():
        definitions[f"plugin.{kind}"] = _section(found, {})
        if kind in RULES_KEY:
            definitions[f"rule.{kind}"] = _section(found, _own_keys(kind))
    for path in (*PLUGIN_PATHS, "observers"):
        *outer, last = path.split(".")
        section = model_in(RunConfig.model_fields[outer[0]].annotation) if outer else None
        owner = schema if section is None else definitions[section.__name__]
        old = owner["properties"][last]
        owner["properties"][last] = {
            **{k: old[k] for k in ("description",) if k in old}, **_place(path, last),
        }  # fmt: skip
    schema["properties"]["include"] = {
        "description": "Run files to merge beneath this one, relative to it.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    schema.pop("title")
    schema.pop("required", None)  # an include may bring what this file leaves out
    whole = _with_references({**schema, "$defs": definitions})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ALE run file", **whole}


async def _probed() -> list[tuple[PluginInfo, Probed]]:
    found = []
    for info in list_plugins():
        probed = await probe(info) if info.status in ("ok", "shadowed") else Probed(info.reason)
        if probed.schema:
            found.append((info, probed))
        else:
            print(f"left out: {info.kind} '{info.name}' of {info.package}: {probed.problem}", file=sys.stderr)
    return found


def _lifted(schema: dict[str, Any], prefix: str, definitions: dict[str, Any]) -> dict[str, Any]:
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
        mappings.append({
            "type": "object", "title": f"{info.name}", "description": info.summary,
            "properties": {"use": {"enum": names}, **own_keys, **schema.get("properties", {})},
            "required": ["use", *schema.get("required", ())], "additionalProperties": False,
        })  # fmt: skip
    names = [name for mapping in mappings for name in mapping["properties"]["use"]["enum"]]
    return {"anyOf": [{"enum": names}, *mappings]} if mappings else {"type": "string"}


def _own_keys(kind: str) -> dict[str, Any]:
    fields = PluginRule.model_json_schema()["properties"]
    several = {"when", "tags"}
    return {
        key: {"anyOf": [{"type": "string"}, fields[key]], "description": fields[key]["description"]} if key in several
        else fields[key]
        for key in OWN_KEYS[RULES_KEY[kind]] if key != "use"
    }  # fmt: skip


def _place(path: str, kind: str) -> dict[str, Any]:
    """What may stand in a plugin's place."""
    if kind == "observers":
        return {"type": "array", "items": {"$ref": f"#/$defs/plugin.{HOOKS}"}}
    forms: list[dict[str, Any]] = [{"$ref": f"#/$defs/plugin.{kind}"}]
    if kind in RULES_KEY and path == kind:
        key = RULES_KEY[kind]
        entries = {"type": "array", "minItems": 1, "items": {"$ref": f"#/$defs/rule.{kind}"}}
        forms.append({"type": "object", "properties": {key: entries}, "required": [key], "additionalProperties": False})
    if kind in OPTIONAL_PLUGINS:
        forms.append({"type": "null"})
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
