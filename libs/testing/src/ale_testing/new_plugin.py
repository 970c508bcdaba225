"""`ale plugins new KIND NAME` makes a package with a small working driver, whose tests pass without changes.

The templates are in `templates/`: `package/` for every kind, `drivers/<kind>.py.jinja` for the driver. A package is
written under another name and then renamed, so that it is never incomplete.
"""

from __future__ import annotations

import json
import keyword
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ale.errors import ConfigError
from ale.registry.validation import nearest_hint
from ale.registry.versions import current_range
from ale.specs.kinds import ALL_KINDS, HOOKS

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Template:
    """What the template of a kind is about."""

    summary: str
    yaml: str
    limits: str
    capabilities: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    """Suites of the kit beside the kind's first one."""


ABOUT = {
    "sandbox": Template(
        "Sandboxes that are temporary folders, without any isolation.",
        "sandbox: {name}\nneeds: {{network: full}}   # it cannot cut the network, so a run must say that it need not",
        "it isolates nothing: commands run as this user, on this machine, with its network.",
        ("network_full",),
        ("ale-resident>=0.1,<0.2",),
        ("sandbox_claims", "sandbox_lifetime"),
    ),
    "engine": Template(
        "Samples tokens without a model, each as likely as the next.",
        "engine: {name}",
        "it learns nothing: weights are noted by their version and not used.",
    ),
    "trainer": Template(
        "One process, one sequence at a time, AdamW.",
        "trainer: {{use: {name}, lr: 1e-4}}",
        "slow: nothing is batched, and while it computes nothing else goes on.",
        (),
        ("torch>=2.5", "transformers>=5.0,<6"),
        ("trainer_policies",),
    ),
    "algorithm": Template(
        "REINFORCE with the group's mean as baseline.",
        "algorithm: {{use: {name}, group_size: 4}}",
        "on-policy: nothing corrects for rollouts of an older policy.",
        (),
        ("ale-packing>=0.1,<0.2",),
    ),
    "scaffold": Template(
        "One shell tool and a loop.", "scaffold: {{use: {name}, max_turns: 8}}", "one tool, no memory."
    ),
    "reward": Template(
        "1 where the task's tests pass, less a price for each model call.",
        "reward: {{use: {name}, price: 0.05}}",
        "where the sandbox has one user for all, what the agent left running was ended but its files are trusted.",
    ),
    "tasks": Template("Asks for a word in a file.", "tasks: {name}", "five tasks."),
    "tool_format": Template(
        "Tool calls as lines that begin with a word.",
        "session: {{tool_format: {name}}}",
        "a line of prose that begins with the word is taken for a call.",
    ),
    "hooks": Template(
        "Writes a line a step.", "observers: [{name}]", "numbers that are not finite are written as NaN."
    ),
}


def write_plugin(kind: str, name: str, with_hooks: bool, into: Path) -> None:
    """Write the package and say what to type next. Raises `ConfigError`; then nothing was written."""
    if kind not in ALL_KINDS:
        raise ConfigError(
            f"There is no kind of plugin '{kind}'.{nearest_hint(kind, ALL_KINDS)} The kinds: {', '.join(ALL_KINDS)}."
        )
    if with_hooks and kind == HOOKS:
        raise ConfigError("A plugin of kind hooks is an observer already; leave --hooks out.")
    module = f"ale_{name.replace('-', '_')}"
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) or keyword.iskeyword(name) or name == "core":
        raise ConfigError(
            f"'{name}' cannot be the name of a plugin: small letters and digits, words joined by - or _, such as "
            "my-sandbox."
        )
    package = f"ale-plugin-{name.replace('_', '-')}"
    target = into / package
    if not into.is_dir():
        raise ConfigError(f"There is no folder {into} to write into.")
    if target.exists():
        raise ConfigError(f"{target} is there already; choose another name, or another folder with --into.")
    aside = Path(tempfile.mkdtemp(dir=into, prefix=f".{package}-"))
    try:
        _write(aside, kind, name, package, module, with_hooks)
        aside.chmod(0o755)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    print(f"Wrote {target}. Next:\n")
    print(f"  cd {target}\n  pip install -e '.[test]'\n  pytest")


def _write(folder: Path, kind: str, name: str, package: str, module: str, with_hooks: bool) -> None:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    about = ABOUT[kind]
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    values = {
        "kind": kind,
        "name": name,
        "package": package,
        "module": module,
        "with_hooks": with_hooks,
        "kind_module": "observer" if kind == HOOKS else kind,
        "api_version": current_range(),
        "class_name": "".join(word.capitalize() for word in re.split("[-_]", name)),
        "summary": about.summary,
        "yaml": about.yaml.format(name=name),
        "limits": about.limits,
        "capabilities": json.dumps(about.capabilities),
        "suites": sorted(("driver", kind, *about.suites)),
        "dependencies": ", ".join(f'"{d}"' for d in ("ale-core>=0.1,<0.2", "pydantic>=2.7", *about.needs)),
    }
    source = f"src/{module}"
    files = {
        "pyproject.toml": "package/pyproject.toml.jinja",
        "README.md": "package/README.md.jinja",
        "CHANGELOG.md": "package/CHANGELOG.md.jinja",
        ".gitignore": "package/gitignore.jinja",
        ".github/workflows/ci.yml": "package/ci.yml.jinja",
        f"{source}/__init__.py": "package/init.py.jinja",
        f"{source}/ale-plugin.json": "package/ale-plugin.json.jinja",
        f"{source}/{values['kind_module']}.py": f"drivers/{kind}.py.jinja",
        "tests/test_contract.py": "package/test_contract.py.jinja",
        f"tests/test_{module.removeprefix('ale_')}.py": "package/test_own.py.jinja",
    }
    if with_hooks:
        files[f"{source}/observer.py"] = "drivers/hooks.py.jinja"
    for path, template in files.items():
        observer = (
            {"class_name": f"{values['class_name']}Observer"} if path.endswith("/observer.py") and with_hooks else {}
        )
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(templates.get_template(template).render({**values, **observer}), encoding="utf-8")
    (folder / source / "py.typed").touch()
    shutil.copy(TEMPLATES / "package" / "LICENSE", folder / "LICENSE")
