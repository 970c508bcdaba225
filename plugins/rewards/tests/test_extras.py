"""What the rewards do where the packages of the extras `judge` and `math` are not installed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ale.errors import ConfigError
from ale.registry.drivers import load_plugin
from ale.specs.choice import PluginChoice

JUDGE = {"url": "http://127.0.0.1:9/v1", "model": "big", "rubric": "The reply is polite."}
WITHOUT_EXTRAS = """
import sys

sys.modules["ale_endpoint"] = sys.modules["math_verify"] = None  # an import of either fails
from ale.registry.drivers import load_plugin
from ale.specs.choice import PluginChoice

for name, settings in (("exact", {}), ("code", {}), ("steps", {}), ("python", {"function": "textwrap:dedent"})):
    load_plugin("reward", PluginChoice(use=name, settings=settings), "reward")
    print(name)
"""


@pytest.mark.parametrize(
    ("name", "settings", "module", "sentence"),
    [
        ("judge", JUDGE, "ale_endpoint", "this reward needs ale-endpoint: pip install 'ale-plugin-rewards[judge]'"),
        ("math", {}, "math_verify", "this reward needs math-verify: pip install 'ale-plugin-rewards[math]'"),
    ],
)
def test_a_reward_without_its_extra_is_refused_with_the_line_that_installs_it(
    name: str, settings: dict[str, Any], module: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [key for key in sys.modules if key.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as caught:
        load_plugin("reward", PluginChoice(use=name, settings=settings), "reward")
    assert sentence in str(caught.value)


def test_the_other_rewards_work_without_the_extras() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["exact", "code", "steps", "python"], done.stderr
