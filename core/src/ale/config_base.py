"""What every part of a run file is made of: sections that refuse unknown keys, and the choice of a plugin or of several."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


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


class PluginRule(PluginChoice):
    """One of several plugins of a section: which tasks it is for, and its share of them."""

    when: tuple[str, ...] = Field((), description="Tags that a task must all carry; `!tag`: must not carry.")
    weight: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="Share among neighbours with the same `when`, or in a mix."
    )
    tags: tuple[str, ...] = Field((), description="In a mix: tags put on each task of this source.")

    @field_validator("when", "tags", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class PluginRules(Section):
    """A section with several plugins: `select` (sandbox, scaffold, reward) by task, or `mix` (tasks) by weight."""

    rules: tuple[PluginRule, ...] = Field(min_length=1)

    @property
    def use(self) -> str:
        """The names, for a sentence."""
        return " + ".join(dict.fromkeys(rule.use for rule in self.rules))


RULES_KEY = {"sandbox": "select", "scaffold": "select", "reward": "select", "tasks": "mix"}
"""Which sections may hold several plugins, and under which key."""
OWN_KEYS = {"select": ("use", "when", "weight"), "mix": ("use", "weight", "tags")}
"""The keys of a rule that are not the plugin's."""
