"""The shipped agents: how each is started without a person, and how it is installed into an image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ale_endpoint.agents import Recipe, node_recipe
from ale_endpoint.agents.agent_variables import Dialect


@dataclass(frozen=True)
class ShippedAgent:
    """An agent's command and settings, which a run file would otherwise have to give. Without a recipe it cannot be
    installed, so images must already have it."""

    command: tuple[str, ...]
    recipe: Recipe | None
    dialect: Dialect = "chat"
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


_RIPGREP = 'chmod -R a+X "$ALE_AGENT" && find "$ALE_AGENT/node_modules" -path "*/ripgrep/*/rg" -exec chmod a+x {} +\n'
_QWEN = node_recipe("qwen-code-0.24.4", "@qwen-code/qwen-code@0.24.4", "qwen", node=22, then=_RIPGREP)
_OPENAI = {"OPENAI_API_KEY": "$ALE_API_KEY", "OPENAI_BASE_URL": "$ALE_BASE_URL", "OPENAI_MODEL": "$ALE_MODEL"}
QUIET = json.dumps(
    {
        # Without a network each of these would wait for an answer that never comes, the first for 8 s at the end.
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True, "disableUpdateNag": True},
    }
)

SHIPPED: Mapping[str, ShippedAgent] = {
    "qwen-code": ShippedAgent(
        (
            f"{_QWEN.place}/bin/node",
            f"{_QWEN.place}/node_modules/.bin/qwen",
            "--yolo",
            "--auth-type",
            "openai",
            "-p",
            "$ALE_TASK",
        ),
        _QWEN,
        env={**_OPENAI, "QWEN_CODE_DISABLE_UPDATE_CHECK": "1"},
        files={"~/.qwen/settings.json": QUIET},
    ),
    "iflow": ShippedAgent(
        ("iflow", "--yolo", "-p", "$ALE_TASK"),
        None,
        env={
            "IFLOW_selectedAuthType": "openai-compatible",
            "IFLOW_apiKey": "$ALE_API_KEY",
            "IFLOW_baseUrl": "$ALE_BASE_URL",
            "IFLOW_modelName": "$ALE_MODEL",
            **_OPENAI,
        },
        files={
            "~/.iflow/settings.json": json.dumps(
                {
                    "selectedAuthType": "openai-compatible",
                    "apiKey": "$ALE_API_KEY",
                    "baseUrl": "$ALE_BASE_URL",
                    "modelName": "$ALE_MODEL",
                    **json.loads(QUIET),
                }
            )
        },
    ),
}
