"""The building blocks of a run file: sections that refuse unknown keys, and the choice of a plugin or of several."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from ale.messages import short_repr


def _check_patterns(value: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in value:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return value


Patterns = Annotated[tuple[str, ...], AfterValidator(_check_patterns)]
"""The type of a key that lists regular expressions."""


class Section(BaseModel):
    """Base of every section: it is frozen and refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    __repr__ = short_repr

    def __str__(self) -> str:
        return repr(self)


class PluginChoice(Section):
    """A plugin, and its own settings."""

    use: str = Field(
        description="Name of the plugin, as `ale plugins list` shows it, or a class: ./mine.py:Mine or module:Mine."
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="The plugin's own keys.")
    _loaded: Any = PrivateAttr(None)
    """The plugin's class and validated settings (`ale.registry.drivers.load_plugin`), which are read once."""

    def __repr__(self) -> str:
        own = {name: getattr(self, name) for name in type(self).model_fields if name != "settings"}
        shown = [f"{name}={value!r}" for name, value in own.items() if value != type(self).model_fields[name].default]
        names = ", ".join([*shown, *(f"{name}=..." for name in self.settings)])
        return f"{type(self).__name__}({names})"  # the values of settings may be secrets

    @property
    def label(self) -> str:
        """What reports call it: its name, or a file's name and the class in it (`mine.py:Mine`) without the folder."""
        return self.use.rpartition("/")[2]

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same text in the file, whatever is loaded."""
        return type(self) is type(other) and self.__dict__ == other.__dict__


Overlong = Literal["drop", "truncate", "fail"]
"""What is done with a text that leaves no room in the context."""
OVERLONG: Overlong = "drop"
OVERLONG_TASKS = (
    "Tasks whose first prompt leaves no room for a reply in rollout.max_context. drop: they are left out, and counted; "
    "truncate: the longest of the user's messages loses its beginning; fail: they end the run."
)


class TasksChoice(PluginChoice):
    """The task source of a run."""

    overlong: Overlong = Field(OVERLONG, description=OVERLONG_TASKS)


class PluginRule(PluginChoice):
    """An entry of a section with several plugins: the plugin and its share."""

    weight: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="Share among neighbouring rules of the same `when`, or in a mix."
    )

    @field_validator("when", "tags", mode="before", check_fields=False)
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class SelectRule(PluginRule):
    """An entry of `select`, which gives each task one of its plugins."""

    when: tuple[str, ...] = Field((), description="Tags that a task must all have; `!tag`: must not have.")


class MixRule(PluginRule):
    """An entry of `mix`, which mixes its plugins."""

    tags: tuple[str, ...] = Field((), description="Tags that are added to each task of this source.")


class PluginRules(Section):
    """A section with several plugins, listed under `key`."""

    key: ClassVar[str]
    rules: tuple[PluginRule, ...] = Field(min_length=1)

    @property
    def use(self) -> str:
        """The names of the plugins, for a sentence."""
        return " + ".join(dict.fromkeys(rule.use for rule in self.rules))

    @classmethod
    def rule(cls) -> type[PluginRule]:
        """Return the model of one entry; its fields except `settings` are the keys that do not belong to the plugin."""
        found: type[PluginRule] = cls.model_fields["rules"].annotation.__args__[0]  # type: ignore[union-attr]
        return found


class Select(PluginRules):
    """Several sandboxes, scaffolds or rewards: the first rule that fits a task decides."""

    key = "select"
    rules: tuple[SelectRule, ...] = Field(min_length=1)


class Mix(PluginRules):
    """Several task sources, mixed by weight."""

    key = "mix"
    rules: tuple[MixRule, ...] = Field(min_length=1)
    overlong: Overlong = Field(OVERLONG, description=OVERLONG_TASKS)
