"""This module makes temporary packages with a good or bad plugin, as an installer would leave them."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

REWARD = """
from ale.specs.reward import Reward
from ale.specs.driver import Driver, PluginConfig
from pydantic import Field
class Fixed(Driver, Reward):
    api_version = ">=1.0,<1.2"
    class Config(PluginConfig):
        value: float = Field(1.0, description="The score.")
    async def score(self, *args, **kwargs): ...
"""

Install = Callable[..., None]


def write_package(
    where: Path,
    package: str,
    source: str = REWARD,
    *,
    name: str = "fixed",
    kind: str = "reward",
    target: str = "",
    manifest: object = None,
    module: str = "",
) -> None:
    """A package with one entry point."""
    module = module or package.replace("-", "_")
    folder, info = where / module, where / f"{package.replace('-', '_')}-2.1.dist-info"
    folder.mkdir()
    info.mkdir()
    (folder / "__init__.py").write_text(textwrap.dedent(source))
    if manifest is not None:
        (folder / "ale-plugin.json").write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.1\nSummary: From afar.\n\nA long description.\n"
    )
    (info / "entry_points.txt").write_text(f"[ale.{kind}]\n{name} = {target or module + ':Fixed'}\n")
    (info / "RECORD").write_text(f"{module}/__init__.py,,\n")


@contextmanager
def packages_at(folder: Path) -> Iterator[None]:
    """Puts a folder with packages on the path, of child processes too, and takes all of it away again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder))
        try:
            yield
        finally:
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", "")).startswith(f"{folder}/"):
                    del sys.modules[name]


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    """Installs a package for one test, and for the processes that it starts."""
    with packages_at(tmp_path):
        yield partial(write_package, tmp_path)
