"""Adds plugins to a package that is there: modules, tests, entry points. No file is overwritten.

Everything is made up before anything is written. Then the new files are created and `pyproject.toml`, which grows, is
replaced whole; what fails in between is taken back.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from ale.errors import ConfigError
from ale.specs.kinds import plugin_noun
from ale_testing.package_plan import PackagePlan


def merge_into(target: Path, plan: PackagePlan) -> None:
    """Add what is planned to the package in the folder `target`, and say what was added. Raises `ConfigError`; then
    nothing was written."""
    project, source = target / "pyproject.toml", target / plan.source
    for needed, there_is in ((project, project.is_file()), (source, source.is_dir())):
        if not there_is:
            raise ConfigError(
                f"{target} is there already, and is no package that a plugin can be added to: it has no "
                f"{needed.relative_to(target)}. Choose another name, or another folder with --out."
            )
    there = [path for path in plan.files if (target / path).exists()]
    if there:
        raise ConfigError(f"{target} has a file {there[0]} already; move it away, or choose another name.")
    grown = {project: _add_to_project(project, plan)}
    _write(target, plan.files, grown)
    print(f"Added to {target}:\n")
    for path in plan.files:
        print(f"  {path}")
    for part in plan.parts:
        print(f"  entry point ale.{part.kind}: {plan.name} = {plan.module}.{part.module}:{part.class_name}")
    print(
        f"\nGrown: {', '.join(str(path.relative_to(target)) for path in grown)}. README.md is yours to write. Next:\n"
    )
    print(f"  cd {target}\n  pip install -e '.[test]'\n  pytest")


def _add_to_project(file: Path, plan: PackagePlan) -> str:
    """The text of `pyproject.toml` with the entry points, the dependencies and the kit's options."""
    document: Any
    try:
        document = tomlkit.parse(file.read_text(encoding="utf-8"))
        project = document["project"]
        groups = project.setdefault("entry-points", tomlkit.table(is_super_table=True))
        for part in plan.parts:
            is_new = f"ale.{part.kind}" not in groups
            group = groups.setdefault(f"ale.{part.kind}", tomlkit.table())
            if plan.name in group:
                raise ConfigError(
                    f"{file.parent} has the {plugin_noun(part.kind)} '{plan.name}' already (in {file.name}); choose "
                    "another name."
                )
            group[plan.name] = f"{plan.module}.{part.module}:{part.class_name}"
            if is_new:
                group.add(tomlkit.nl())
        dependencies = project.setdefault("dependencies", tomlkit.array())
        known = {_package_of(str(one)) for one in dependencies}
        for one in plan.dependencies:
            if _package_of(one) not in known:
                dependencies.append(one)
        tool = document.setdefault("tool", tomlkit.table(is_super_table=True))
        options = tool.setdefault("pytest", tomlkit.table(is_super_table=True)).setdefault(
            "ini_options", tomlkit.table()
        )
        before = options.get("addopts", "")
        if isinstance(before, str):
            new = [option for option in plan.options if option.split()[0] not in before or "--ale-plugin" in option]
            options["addopts"] = " ".join([before, *new]).strip()
        else:
            before.extend(word for option in plan.options for word in option.split())
    except (OSError, UnicodeDecodeError, TOMLKitError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be added to: {type(error).__name__}: {error}.") from None
    return tomlkit.dumps(document)


def _package_of(requirement: str) -> str:
    """The name of the package in a requirement, in one spelling."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]).lower()


def _write(target: Path, files: dict[str, str], grown: dict[Path, str]) -> None:
    made: list[Path] = []
    before = {path: path.read_bytes() for path in grown}
    try:
        for path, text in {target / name: text for name, text in files.items()}.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
        for path, text in grown.items():
            _replace(path, text.encode())
    except BaseException as error:
        for path in made:
            with suppress(OSError):
                path.unlink()
        for path, data in before.items():
            with suppress(OSError):
                _replace(path, data)
        if isinstance(error, OSError):
            raise ConfigError(f"{target} cannot be written to: {error}. Nothing was added.") from None
        raise


def _replace(path: Path, data: bytes) -> None:
    """Put a file in another one's place, whole."""
    aside = path.with_name(f".{path.name}.new")
    try:
        aside.write_bytes(data)
        aside.chmod(path.stat().st_mode)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
