"""`ale plugins new KIND NAME` makes a package with a small working driver, whose tests pass without changes.

A new package (`package_plan.py`) is written under another name and then renamed, so that it is never incomplete. To a
package that is there, the kind is added (`merge_plugin.py`).
"""

from __future__ import annotations

import keyword
import os
import re
import shutil
import tempfile
from pathlib import Path

from ale.errors import ConfigError
from ale.registry.validation import nearest_hint
from ale.specs.kinds import HOOKS
from ale.store.output_files import check_folder, shorten_path
from ale_testing.merge_plugin import merge_into
from ale_testing.package_plan import plan_package
from ale_testing.plugin_templates import NEW_KINDS, TEMPLATES


def write_plugin(kind: str, name: str, with_hooks: bool, out: Path) -> None:
    """Write the package, or add to the one that is there, and say what to type next. Raises `ConfigError`; then nothing
    was written."""
    if kind not in NEW_KINDS:
        raise ConfigError(
            f"There is no kind of plugin '{kind}'.{nearest_hint(kind, NEW_KINDS)} The kinds: {', '.join(NEW_KINDS)}."
        )
    if with_hooks and kind == HOOKS:
        raise ConfigError("A plugin of kind hooks is an observer already; leave --hooks out.")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) or keyword.iskeyword(name) or name == "core":
        raise ConfigError(
            f"'{name}' cannot be the name of a plugin: small letters and digits, words joined by - or _, such as "
            "my-sandbox."
        )
    if not os.path.isdir(out):
        raise ConfigError(f"There is no folder {shorten_path(out)} to write into.")
    check_folder(out)
    target = out / f"ale-plugin-{name.replace('_', '-')}"
    if target.exists():
        merge_into(target, plan_package(kind, name, with_hooks, beside=True))
        return
    plan = plan_package(kind, name, with_hooks)
    aside = Path(tempfile.mkdtemp(dir=out, prefix=f".{plan.package}-"))
    try:
        for path, text in {**plan.frame, **plan.files}.items():
            (aside / path).parent.mkdir(parents=True, exist_ok=True)
            (aside / path).write_text(text, encoding="utf-8")
        shutil.copy(TEMPLATES / "package" / "LICENSE", aside / "LICENSE")
        aside.chmod(0o755)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    print(f"Wrote {target}. Next:\n")
    print(f"  cd {target}\n  pip install -e '.[test]'\n  pytest")
