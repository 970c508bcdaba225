"""Plans a package of a kind: which plugins (`Part`) and which files it has, rendered from the templates.

The templates are in `templates/`: `package/` for every kind, `drivers/<kind>.py.jinja` for the driver of a kind,
`environment/` for a package of three kinds.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from ale.registry.versions import current_range
from ale.specs.kinds import HOOKS
from ale_testing.plugin_templates import ABOUT, ENVIRONMENT, PARTS, TEMPLATES


@dataclass(frozen=True)
class Part:
    """One plugin of a package: the class that its entry point names."""

    kind: str
    module: str
    class_name: str


@dataclass(frozen=True)
class PackagePlan:
    """What is to be written: `files` are those of the plugins and their tests, `frame` the rest of a new package."""

    name: str
    package: str
    module: str
    parts: tuple[Part, ...]
    dependencies: tuple[str, ...]
    options: tuple[str, ...]
    """Options of pytest with which the kit finds the plugins."""
    files: dict[str, str]
    frame: dict[str, str]

    @property
    def source(self) -> str:
        """The folder of the package's module."""
        return f"src/{self.module}"


def plan_package(kind: str, name: str, with_hooks: bool, *, beside: bool = False) -> PackagePlan:
    """Plan a package of a kind, or what is added `beside` the plugins of one, where files and classes are called after
    the kind."""
    about, package = ABOUT[kind], f"ale-plugin-{name.replace('_', '-')}"
    module = f"ale_{name.replace('-', '_')}"
    class_name = "".join(word.capitalize() for word in re.split("[-_]", name))
    parts = [_part(own, class_name, kind, beside) for own in PARTS.get(kind, (kind,))]
    parts += [_part(HOOKS, class_name, kind, True)] if with_hooks else []
    kinds = [part.kind for part in parts]
    suites = {suite for own in kinds for suite in (own, *ABOUT[own].suites)} | (set() if beside else {"driver"})
    needs = {need: None for own in (kind, *kinds) for need in ABOUT[own].needs}
    options = [f"--ale-plugin {own}:{package}:{name}" for own in kinds]
    options += [f"--ale-tasks {package}:{name}"] if kind == ENVIRONMENT else []
    dependencies = ("ale-core>=0.1,<0.2", "pydantic>=2.7", *needs)
    values = {
        "kind": kind,
        "name": name,
        "package": package,
        "module": module,
        "class_name": class_name,
        "parts": [asdict(part) for part in parts],
        "api_version": current_range(),
        "summary": about.summary,
        "yaml": about.yaml.format(name=name),
        "limits": about.limits,
        "suites": sorted(suites),
        "options": " ".join(options),
        "tested_with": "".join(f'"{extra}", ' for extra in about.tested_with),
        "dependencies": ", ".join(f'"{one}"' for one in dependencies),
    }
    source, word = f"src/{module}", f"_{kind}" if beside else ""
    files = {f"tests/test_contract{word}.py": _render("package/test_contract.py.jinja", values)}
    if kind != ENVIRONMENT:
        files[f"tests/test_{module.removeprefix('ale_')}{word}.py"] = _render("package/test_own.py.jinja", values)
    else:
        files[f"{source}/environment.py"] = _render("environment/environment.py.jinja", values)
        files[f"{source}/plugins.py"] = _render("environment/plugins.py.jinja", values)
        files["tests/test_environment.py"] = _render("environment/test_environment.py.jinja", values)
        files["run.yaml"] = _render("environment/run.yaml.jinja", values)
    for part in parts:
        if f"{source}/{part.module}.py" not in files:
            own = {**values, "class_name": part.class_name}
            files[f"{source}/{part.module}.py"] = _render(f"drivers/{part.kind}.py.jinja", own)
    frame = {
        "pyproject.toml": _render("package/pyproject.toml.jinja", values),
        "README.md": _render("package/README.md.jinja", values),
        "CHANGELOG.md": _render("package/CHANGELOG.md.jinja", values),
        ".gitignore": _render("package/gitignore.jinja", values),
        ".github/workflows/ci.yml": _render("package/ci.yml.jinja", values),
        f"{source}/__init__.py": _render("package/init.py.jinja", values),
        f"{source}/py.typed": "",
    }
    return PackagePlan(name, package, module, tuple(parts), dependencies, tuple(options), files, frame)


def _part(kind: str, name: str, whole: str, beside: bool) -> Part:
    """The plugin of one kind in a package whose classes begin with `name`."""
    word = "Observer" if kind == HOOKS else "".join(part.capitalize() for part in kind.split("_"))
    class_name = f"{name}{word}" if beside or whole == ENVIRONMENT else name
    module = "plugins" if whole == ENVIRONMENT and kind != HOOKS else "observer" if kind == HOOKS else kind
    return Part(kind, module, class_name)


def _render(template: str, values: dict[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    return templates.get_template(template).render(values)
