"""The agents that are shipped: how each is started without a person, and how it comes into an image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ale.specs.scaffold import Recipe
from ale_agents import node_recipe
from ale_agents.line import Dialect


@dataclass(frozen=True)
class Shipped:
    """What a run file would have to say of an agent. A recipe of None: nobody can install it, so images must have it."""

    command: tuple[str, ...]
    recipe: Recipe | None
    dialect: Dialect = "chat"
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


_RIPGREP = 'chmod -R a+X "$ALE_AGENT" && find "$ALE_AGENT/node_modules" -path "*/ripgrep/*/rg" -exec chmod a+x {} +\n'
_QWEN = node_recipe("qwen-code-0.24.4", "@qwen-code/qwen-code@0.24.4", "qwen", node=22, then=_RIPGREP)
_OPENAI = {"OPENAI_API_KEY": "$ALE_API_KEY", "OPENAI_BASE_URL": "$ALE_BASE_URL", "OPENAI_MODEL": "$ALE_MODEL"}
QUIET = json.dumps({
    # Without a network each of these would wait for an answer that does not come, the first one 8 s at the end.
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "disableAutoUpdate": True, "disableUpdateNag": True},
})  # fmt: skip

SHIPPED: Mapping[str, Shipped] = {
    "qwen-code": Shipped(
        (f"{_QWEN.place}/bin/node", f"{_QWEN.place}/node_modules/.bin/qwen", "--yolo", "--auth-type", "openai", "-p", "$ALE_TASK"),
        _QWEN, env={**_OPENAI, "QWEN_CODE_DISABLE_UPDATE_CHECK": "1"}, files={"~/.qwen/settings.json": QUIET},
    ),
    "iflow": Shipped(
        ("iflow", "--yolo", "-p", "$ALE_TASK"), None,
        env={
            "IFLOW_selectedAuthType": "openai-compatible", "IFLOW_apiKey": "$ALE_API_KEY", "IFLOW_baseUrl": "$ALE_BASE_URL",
            "IFLOW_modelName": "$ALE_MODEL", **_OPENAI,
        },
        files={"~/.iflow/settings.json": json.dumps({
            "selectedAuthType": "openai-compatible", "apiKey": "$ALE_API_KEY", "baseUrl": "$ALE_BASE_URL",
            "modelName": "$ALE_MODEL", **json.loads(QUIET),
        })},
    ),
}  # fmt: skip
