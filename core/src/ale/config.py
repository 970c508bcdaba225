"""Run files: YAML -> OmegaConf (include, overrides, interpolation) -> pydantic (`RunConfig` and each plugin's `Config`).

Whatever is wrong becomes one sentence a mistake, with its YAML path, what is valid there, and the nearest name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from ale.errors import AleError, ConfigError
from ale.run_config import PluginChoice, RunConfig
from ale.specs.driver import Driver

PLUGIN_SECTIONS = ("tasks", "scaffold", "sandbox", "reward", "engine", "trainer", "algorithm")
NESTED_ALGORITHM = "sft.algorithm"
INCLUDE = "include"


@dataclass(frozen=True)
class LoadedConfig:
    """A validated run configuration: `run` typed, `resolved` as plain data."""

    run: RunConfig
    resolved: dict[str, Any]

    def to_yaml(self) -> str:
        """The resolved configuration as a run file."""
        return yaml.safe_dump(self.resolved, sort_keys=False, allow_unicode=True)


def load_run_config(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read, merge, resolve and validate a run file. Raises `ConfigError`."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    data = _with_includes(path, ())
    for override in overrides:
        _apply(data, override)
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(data), resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None)
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key or path}: {reason}.") from error
    assert isinstance(resolved, dict)
    run = _validated(RunConfig, resolved, "")
    mistakes = [sentence for where, choice in plugin_choices(run) if (sentence := _mistake(where, choice))]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return LoadedConfig(run, resolved)


def plugin_choices(run: RunConfig) -> list[tuple[str, PluginChoice]]:
    """Every plugin section that the run names, with its YAML path."""
    found = [(name, getattr(run, name)) for name in PLUGIN_SECTIONS if getattr(run, name) is not None]
    return [*found, (NESTED_ALGORITHM, run.sft.algorithm)] if run.sft else found


def _mistake(where: str, choice: PluginChoice) -> str | None:
    from ale.plugins import load_driver_class

    try:
        cls = load_driver_class(where.rpartition(".")[2], choice.use, where)
        validated_settings(cls, choice.settings, where)
    except AleError as error:
        return str(error)
    return None


def validated_settings(cls: type[Driver], settings: Mapping[str, Any], where: str) -> BaseModel:
    """A plugin's `Config` from its section. Raises `ConfigError` with a sentence a mistake."""
    return _validated(cls.Config, dict(settings), where)


# -- reading ---------------------------------------------------------------------------------------------------


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key given twice is a mistake, and `1e-3` is a number."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is not a text", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' is given twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _mapping)


def _float_resolver() -> None:
    import re

    pattern = re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
    _StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", pattern, list("-+0123456789."))  # type: ignore[no-untyped-call]


_float_resolver()


def _parse(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}{place}: {error.problem or 'this is not YAML'}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{source}: this is not YAML: {str(error).splitlines()[0] if str(error) else error!r}."
        ) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"There is no run file {path}.") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, not a run file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8 (byte {error.start}).") from None
    except OSError as error:
        raise ConfigError(f"The run file {path} cannot be read: {error.strerror}.") from None
    data = _parse(text, str(path))
    if not isinstance(data, dict):
        found = "empty" if data is None else f"a {type(data).__name__}"
        raise ConfigError(f"{path} must hold a mapping of keys to values; it is {found}.")
    return data


def _with_includes(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """The file, merged over the files that it includes."""
    here = path.resolve()
    if here in above:
        raise ConfigError(f"{path} includes itself: {' -> '.join(str(p) for p in (*above, here))}.")
    data = _normalised(_read(path))
    includes = data.pop(INCLUDE, [])
    if isinstance(includes, str):
        includes = [includes]
    if not isinstance(includes, list) or not all(isinstance(name, str) for name in includes):
        raise ConfigError(f"{path}: 'include' must be a list of files.")
    merged: dict[str, Any] = {}
    for name in includes:
        merged = _merge(merged, _with_includes(path.parent / name, (*above, here)))
    return _merge(merged, data)


def _normalised(data: dict[str, Any]) -> dict[str, Any]:
    """Plugin sections that are a name become mappings, so that they can be merged and overridden."""
    out = {k: {"use": v} if k in PLUGIN_SECTIONS and isinstance(v, str) else v for k, v in data.items()}
    sft = out.get("sft")
    if isinstance(sft, dict) and isinstance(sft.get("algorithm"), str):
        out["sft"] = {**sft, "algorithm": {"use": sft["algorithm"]}}
    return out


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on `base`, mapping by mapping. Another plugin's section replaces the whole section."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        other_plugin = (
            isinstance(old, dict) and isinstance(value, dict) and value.get("use", old.get("use")) != old.get("use")
        )
        out[key] = (
            _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) and not other_plugin else value
        )
    return out


def _apply(data: dict[str, Any], override: str) -> None:
    """Apply `a.b=value` from the command line, in place."""
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"The override '{override}' must look like key=value, such as rl.steps=3.")
    value = _parse(text, f"The override '{override}'")
    node: dict[str, Any] = data
    for i, key in enumerate(keys[:-1]):
        child = node.get(key)
        if child is None:
            # A section that the file leaves out has its default plugin; only that knows what the key means.
            child = node[key] = {"use": _default_plugin(key)} if i == 0 and key in PLUGIN_SECTIONS else {}
        if not isinstance(child, dict):
            raise ConfigError(f"The override '{override}': '{'.'.join(keys[: i + 1])}' is a value and holds no keys.")
        node = child
    if isinstance(value, str) and (name in PLUGIN_SECTIONS or name == NESTED_ALGORITHM):
        value = {"use": value}
    node[keys[-1]] = value


def _default_plugin(section: str) -> str | None:
    default = RunConfig.model_fields[section].default
    return default.use if isinstance(default, PluginChoice) else None


# -- validating ------------------------------------------------------------------------------------------------


def _validated(model: type[BaseModel], data: dict[str, Any], where: str) -> Any:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        sentences = dict.fromkeys(_sentence(model, item, where) for item in error.errors())
        raise ConfigError("\n".join(sentences)) from error
    except RecursionError as error:
        raise ConfigError(f"{where or 'The run file'}: the values are nested too deeply.") from error


def _sentence(model: type[BaseModel], item: Any, where: str) -> str:
    location = [str(part) for part in item["loc"]]
    path = ".".join([*([where] if where else []), *location]) or "the run file"
    if item["type"] == "extra_forbidden":
        names = _fields_at(model, location[:-1])
        near = difflib.get_close_matches(location[-1], names, 1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        return f"{path}: there is no such key.{hint} Valid here: {', '.join(names) or 'no keys'}."
    if item["type"] == "missing":
        return f"{path}: this key is missing."
    message = item["msg"].removeprefix("Value error, ").rstrip(".")
    given = "" if item["type"] == "value_error" else f" (it is {_short(item.get('input'))})"
    return f"{path}: {message[:1].lower()}{message[1:]}{given}."


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fields_at(model: type[BaseModel], location: Iterable[str]) -> list[str]:
    """The valid keys at a place inside a model."""
    current: Any = model
    for part in location:
        field = current.model_fields.get(part) if current is not None else None
        current = _model_in(field.annotation) if field is not None else None
    return list(current.model_fields) if current is not None else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for a in get_args(annotation) if (found := _model_in(a)) is not None), None)


def describe(model: type[BaseModel], prefix: str = "") -> list[tuple[str, str, str, str]]:
    """Every key of a model: (path, type, default, meaning), sections opened."""
    rows: list[tuple[str, str, str, str]] = []
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is not None and inner is not PluginChoice:
            rows += describe(inner, f"{prefix}{name}.")
            continue
        required = field.is_required()
        default = field.get_default(call_default_factory=True)
        shown = "required" if required else default.use if isinstance(default, PluginChoice) else str(default)
        kind = "plugin" if inner is PluginChoice else _type_name(field.annotation)
        rows.append((f"{prefix}{name}", kind, shown, field.description or ""))
    return rows


def _type_name(annotation: Any) -> str:
    text = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    return text.replace("typing.", "").replace("pathlib.", "").replace("NoneType", "None")
