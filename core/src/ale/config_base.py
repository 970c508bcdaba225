"""What every part of a run file is made of: sections that refuse unknown keys, and the choice of a plugin."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """Base of every section: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PluginChoice(Section):
    """Which plugin, and its own settings (already validated against its `Config` when a run starts)."""

    use: str = Field(description="Name of the plugin, as `ale plugins list` shows it.")
    settings: dict[str, Any] = Field(default_factory=dict, description="The plugin's own keys.")

    @model_validator(mode="before")
    @classmethod
    def _from_name_or_mapping(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"use": value}
        if isinstance(value, dict) and "settings" not in value:
            return {"use": value.get("use"), "settings": {k: v for k, v in value.items() if k != "use"}}
        return value
