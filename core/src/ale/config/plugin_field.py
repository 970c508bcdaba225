"""Fields of a run file that name plugins: a name, a mapping with `use`, or several plugins under `select` or `mix`.

sandbox:
  select:
    - {when: docker, use: docker}         # the first rule that fits a task decides ...
    - {when: [swe, "!heavy"], use: podman}
    - {use: local, weight: 3}             # ... and adjacent rules with the same `when` share by weight
    - {use: local, weight: 1, isolation: none}

Such a field has the type `Annotated[PluginChoice | Select, PluginField("sandbox")]`: when pydantic validates it, only
the named plugin is imported, and the plugin's `Config` checks the keys beside `use`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, cast, get_args

from pydantic import BaseModel
from pydantic_core import core_schema

from ale.errors import AleError
from ale.registry.drivers import load_plugin
from ale.registry.hints import ask_hints
from ale.registry.installed import list_plugins
from ale.registry.validation import Mistake, Mistakes, format_value, model_in, nearest_hint, plugin_mark, validate
from ale.specs.choice import PluginChoice, PluginRules
from ale.specs.kinds import plugin_noun


@dataclass(frozen=True)
class PluginField:
    """It marks a field that holds a `PluginChoice` of a kind, null, `PluginRules`, or a list of choices."""

    kind: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Read the section by `_read`; the type of the field says which forms it may have."""
        forms = get_args(source) or (source,)

        def read(value: Any, inner: Callable[[Any], Any]) -> Any:
            if value in (None, "none", {"use": "none"}) and NoneType in forms:
                return None
            try:
                if Ellipsis not in forms:
                    return self._read(value, _rules_of(forms), _choice_of(forms))
                if not isinstance(value, list | tuple):
                    return inner(value)
                found: list[Mistake] = []
                choices = [_collect(found, (str(i),), self._read, item, None) for i, item in enumerate(value)]
                if found:
                    raise Mistakes(found)
                return tuple(choices)
            except Mistakes as mistakes:
                raise mistakes.as_validation_error() from None

        return core_schema.no_info_wrap_validator_function(read, handler(source))

    def when_missing(self) -> str:
        """Return what to do about a missing key, as the end of a sentence."""
        return f"name {_a(plugin_noun(self.kind))}. Installed: {_names(self.kind)}"

    def _read(
        self, value: Any, several: type[PluginRules] | None, model: type[PluginChoice] = PluginChoice
    ) -> PluginChoice | PluginRules:
        """Return what a section names; `model` has the keys beside the plugin's own. Raises `Mistakes`."""
        if isinstance(value, PluginRules):
            return value
        if several is not None and isinstance(value, dict) and several.key in value:
            return self._read_rules(value, several)
        return self.read_choice(value, model, () if several is None else (several.key,))

    def read_choice(self, value: Any, model: type[PluginChoice], other_keys: Sequence[str] = ()) -> PluginChoice:
        """Return one plugin from a name, a mapping with `use`, or a choice; check its settings. Raises `Mistakes`."""
        own = [name for name in model.model_fields if name != "settings"]
        if isinstance(value, str):
            value = {"use": value}
        if not isinstance(value, PluginChoice):
            self._check_use(value, [*own, *other_keys])
            settings = {key: item for key, item in value.items() if key not in own}
            value = validate(model, {**{key: value[key] for key in own if key in value}, "settings": settings})
        elif not isinstance(value, model):
            value = model(use=value.use, settings=value.settings)
        try:
            load_plugin(self.kind, value, "", (*own, *other_keys))
        except Mistakes:
            raise
        except AleError as error:
            raise Mistakes([((), str(error))]) from None
        return cast(PluginChoice, value)

    def _check_use(self, section: Any, keys: Sequence[str]) -> None:
        """Refuse a section that is not a mapping with a name under `use`. Raises `Mistakes`."""
        if not isinstance(section, dict):
            name = f"the name of {_a(plugin_noun(self.kind))}"
            what = f"must be {name}, or a mapping with 'use' (it is {format_value(section)})"
            raise Mistakes([((), f"{what}. Installed: {_names(self.kind)}.")])
        if "use" not in section:
            for key in section:
                if key not in keys and (meant := nearest_hint(key, keys)):
                    raise Mistakes([((key,), f"there is no such key.{meant} It says which {plugin_noun(self.kind)}.")])
            for key, value in section.items():
                if key not in keys and (known := ask_hints("keys", (self.kind, key), value)):
                    raise Mistakes([(path[1:], sentence) for path, sentence in known])
        if not isinstance(section.get("use"), str):
            found = (
                f"must be a name (it is {format_value(section['use'])})" if "use" in section else "this key is missing"
            )
            sentence = f"{found}; it says which {plugin_noun(self.kind)}. Installed: {_names(self.kind)}."
            raise Mistakes([(("use",), sentence)])

    def _read_rules(self, section: Mapping[str, Any], several: type[PluginRules]) -> PluginRules:
        key, entries = several.key, section[several.key]
        own = several.model_fields.keys() - {"rules"}
        for other in (name for name in section if name != key and name not in own):
            hint = nearest_hint(other, [key, *own]) if len(section) == 2 else ""
            raise Mistakes([((other,), f"beside '{key}' a section has no key; it belongs into its entries.{hint}")])
        if not isinstance(entries, list) or not entries:
            raise Mistakes([((key,), f"must be a list of plugin sections (it is {format_value(entries)}).")])
        found: list[Mistake] = []
        rules = [
            _collect(found, (key, str(i)), self.read_choice, entry, several.rule()) for i, entry in enumerate(entries)
        ]
        if found:
            raise Mistakes(found)
        whole = validate(several, {"rules": tuple(rules), **{name: section[name] for name in own & section.keys()}})
        if unreachable := [((key, str(i)), sentence) for i, sentence in _unreachable(whole)]:
            raise Mistakes(unreachable)
        return whole


def _collect(found: list[Mistake], where: tuple[str, ...], read: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `read` returns; its mistakes are added to `found`, with paths below `where`."""
    try:
        return read(*arguments)
    except Mistakes as mistakes:
        found += [((*where, *path), sentence) for path, sentence in mistakes.found]


def _unreachable(section: PluginRules) -> Iterator[tuple[int, str]]:
    """Yield the rules after one that takes every task."""
    conditions = [getattr(rule, "when", None) for rule in section.rules]
    for i, when in enumerate(conditions):
        if when and () in conditions[:i]:
            yield i, "no task comes here, since a rule above it has no 'when' and takes them all; move it up."


def _rules_of(forms: Sequence[Any]) -> type[PluginRules] | None:
    return next((form for form in forms if isinstance(form, type) and issubclass(form, PluginRules)), None)


def _choice_of(forms: Sequence[Any]) -> type[PluginChoice]:
    return next((form for form in forms if isinstance(form, type) and issubclass(form, PluginChoice)), PluginChoice)


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeio" else f"a {noun}"


def _names(kind: str) -> str:
    return ", ".join(sorted({info.name for info in list_plugins(kind)})) or "none"


# -- places of a run file that name plugins ----------------------------------------------------------------------------


@dataclass(frozen=True)
class PluginPlace:
    """A place of a run file that names plugins: its YAML path, the kind of plugin, and the allowed forms."""

    path: str
    kind: str
    several: type[PluginRules] | None
    """The form with several plugins, if it is allowed."""
    optional: bool
    """Whether null is allowed."""
    is_list: bool
    default: str | None

    def is_entry(self, path: str) -> bool:
        """Return whether the path is that of one plugin in a list."""
        above = f"{self.path}.{self.several.key}." if self.several else f"{self.path}." if self.is_list else None
        return above is not None and path.startswith(above) and path[len(above) :].isdecimal()


def plugin_places(model: type[BaseModel], above: str = "") -> Iterator[PluginPlace]:
    """Yield every place in a model that names plugins."""
    for name, field in model.model_fields.items():
        mark, inner = plugin_mark(field), model_in(field.annotation)
        if mark is not None:
            forms = get_args(field.annotation)
            default = field.default if isinstance(field.default, str) else None
            yield PluginPlace(above + name, mark.kind, _rules_of(forms), NoneType in forms, Ellipsis in forms, default)
        elif inner is not None:
            yield from plugin_places(inner, f"{above}{name}.")


def choices_in(section: BaseModel, above: str = "") -> Iterator[tuple[str, str, PluginChoice]]:
    """Yield every plugin that a section and the sections in it name: YAML path, kind, choice."""
    for name, field in type(section).model_fields.items():
        mark, value = plugin_mark(field), getattr(section, name)
        path = above + name
        if mark is None:
            named = {f"{path}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {path: value}
            for place, item in named.items():
                if isinstance(item, BaseModel):
                    yield from choices_in(item, f"{place}.")
        elif isinstance(value, PluginRules):
            yield from ((f"{path}.{value.key}.{i}", mark.kind, rule) for i, rule in enumerate(value.rules))
        elif isinstance(value, PluginChoice):
            yield path, mark.kind, value
        else:
            yield from ((f"{path}.{i}", mark.kind, choice) for i, choice in enumerate(value or ()))
