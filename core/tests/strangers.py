"""Plugins of strangers: throw-away packages, good and bad, as an installer would leave them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

REWARD = """
from ale.specs.reward import Reward
from ale.specs.driver import PluginConfig
from pydantic import Field
class Fixed(Reward):
    api_version = ">=1.1,<1.3"
    class Config(PluginConfig):
        value: float = Field(1.0, description="The score.")
    async def score(self, *args, **kwargs): ...
"""

Install = Callable[..., None]


def write_package(
    where: Path, package: str, source: str = REWARD, *, name: str = "fixed", kind: str = "reward", target: str = "",
    manifest: object = None, module: str = "",
) -> None:  # fmt: skip
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
