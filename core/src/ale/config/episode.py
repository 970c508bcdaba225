"""The configuration of an episode as typed models: what each key means, with its default.

A field that names a plugin (`sandbox`, `engine`, ...) has a type that says so (`plugin_field.py`), so that validating
an `EpisodeConfig` also imports the plugins and checks their settings. A run file has these keys and those of training.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ale.config.plugin_field import PluginField, choices_in
from ale.config.pool import PoolConfig
from ale.specs.choice import Mix, Patterns, PluginChoice, PluginRules, Section, Select, TasksChoice
from ale.specs.kinds import CAPABILITIES, HOOKS
from ale.specs.sandbox import ALLOW, NetworkMode, Resources, host_and_port

DEFAULT_TOOL_FORMAT = "hermes"
ControlTokens = Literal["text", "parsed"]
PluginKind = Literal["sandbox", "engine", "trainer", "algorithm", "scaffold", "reward", "tasks"]


DEFAULT_RESOURCES = Resources(memory_mib=512, pids=128, disk_mib=64)


class SandboxNeeds(Section):
    """What every sandbox of the run gets, and what its plugins must be able to do."""

    resources: Resources = Field(
        DEFAULT_RESOURCES,
        description=(
            "Limits of one sandbox. A key that is left out has its default; null means the provider's own limit. "
            "If no limit is set at all, a provider without the capability `limits` may be used."
        ),
    )
    network: NetworkMode = Field(
        "none", description="What a sandbox can reach: none, endpoint-only (the model), allow (also needs.allow), full."
    )
    allow: tuple[str, ...] = Field((), description=ALLOW)
    capabilities: dict[PluginKind, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Capabilities that the run's plugins must have besides: kind -> words, as in sandbox: [limits].",
    )

    @field_validator("resources", mode="before")
    @classmethod
    def _beside_the_defaults(cls, value: Any) -> Any:
        return {**DEFAULT_RESOURCES.model_dump(), **value} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _allow_goes_with_allow(self) -> SandboxNeeds:
        for entry in self.allow:
            host_and_port(entry)
        if self.allow and self.network != "allow":
            raise ValueError(
                f"'allow' names hosts, and 'network' is {self.network}: set network to allow, or leave allow out"
            )
        if self.network == "allow" and not self.allow:
            raise ValueError("'network' is allow, and 'allow' names no host: name some, such as pypi.org:443")
        return self

    @property
    def limits_given(self) -> bool:
        """Whether the run file itself sets limits."""
        return "resources" in self.model_fields_set and any(v is not None for _, v in self.resources)

    @field_validator("capabilities")
    @classmethod
    def _known_words(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for kind, words in value.items():
            for word in words:
                if word not in CAPABILITIES[kind] and "." not in word:
                    known = ", ".join(CAPABILITIES[kind]) or "none but plugins' own"
                    raise ValueError(f"there is no capability '{word}' of kind {kind}; there are {known}")
        return value


class RolloutConfig(Section):
    """How episodes run, in training and in evaluation alike."""

    concurrency: int = Field(64, gt=0, description="Episodes that run at the same time.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature in training.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling in training.")
    top_k: int = Field(0, ge=0, description="Sample among the k most likely tokens only; 0: all.")
    max_calls: int = Field(8, gt=0, description="Most model calls in one episode; those without tools count apart.")
    max_tokens: int = Field(128, gt=0, description="Most tokens in one response.")
    max_context: int = Field(1024, gt=0, description="Most tokens in one context window, prompt and response together.")
    max_sampled_tokens: int | None = Field(
        None, gt=0, description="Most tokens that the model may sample in all responses of an episode; null: any."
    )
    timeout_s: float = Field(120.0, gt=0, description="Seconds after which an episode is stopped.")
    side_calls: Literal["no_tools", "none"] = Field(
        "no_tools",
        description=(
            "Which model calls are excluded from training. no_tools: if an agent has tools, its calls without "
            "tools (titles, summaries); none: no call is excluded."
        ),
    )
    ignore_in_answers: Patterns = Field(
        (), description="Regular expressions of what is ignored (times, ids) in comparing deterministic tools' answers."
    )
    max_resamples: int = Field(
        2, ge=0, description="How often a rejected episode (such as after a fault of the sandbox) is sampled again."
    )
    spare: int = Field(
        0, ge=0, description="Most spare rollouts of a group in RL, for one that failed or whose tools take long."
    )
    max_illegal_calls: int = Field(
        0, ge=0, description="Reject an RL rollout with this many illegal tool calls of the policy in a row; 0: never."
    )
    deterministic_tools: tuple[str, ...] = Field(
        (),
        description=(
            "Tools whose answer depends only on the task and the arguments, beyond those that the "
            "scaffold declares. Rollouts in which it answers identical calls differently are rejected."
        ),
    )

    @model_validator(mode="after")
    def _a_response_fits_into_the_context(self) -> RolloutConfig:
        if self.max_tokens > self.max_context:
            raise ValueError(
                f"max_tokens ({self.max_tokens}) is above max_context ({self.max_context}), which holds prompt and "
                "response together: raise max_context or lower max_tokens"
            )
        return self


class SessionConfig(Section):
    """The model session: how texts become tokens, and how the model's text is read."""

    tool_format: Annotated[PluginChoice, PluginField("tool_format")] = Field(
        DEFAULT_TOOL_FORMAT,
        validate_default=True,
        description="How the model writes tool calls as text, such as hermes or llama.",
    )
    thoughts: tuple[str, str] | None = Field(
        ("<think>", "</think>"),
        description="Marks around the model's thoughts, which agents get as reasoning; null: as part of the text.",
    )
    control_tokens: ControlTokens = Field(
        "text",
        description="What the text of a control token (<|im_end|>) is in the messages of users, tools and the system, "
        "and in rows of demonstrations. text: ordinary text; parsed: the control token, for data that you trust.",
    )


class EpisodeConfig(Section):
    """What episodes are made with: tasks, sandbox, scaffold, reward, and the engine that answers the agent."""

    seed: int = Field(1, ge=0, description="Seed of tasks, weights and sampling.")
    tasks: Annotated[TasksChoice | Mix, PluginField("tasks")] = Field(description="Where the tasks come from.")
    scaffold: Annotated[PluginChoice | Select, PluginField("scaffold")] = Field(
        "iflow", validate_default=True, description="The agent around the model."
    )
    sandbox: Annotated[PluginChoice | Select | None, PluginField("sandbox")] = Field(
        "local", validate_default=True, description="Where the agent's commands run; none: nowhere, it has no commands."
    )
    reward: Annotated[PluginChoice | Select, PluginField("reward")] = Field(
        "tests", validate_default=True, description="What scores an episode."
    )
    engine: Annotated[PluginChoice, PluginField("engine")] = Field(
        "torch", validate_default=True, description="What samples the policy's tokens, or answers in its place."
    )
    needs: SandboxNeeds = SandboxNeeds()
    session: SessionConfig = Field({}, validate_default=True)
    rollout: RolloutConfig = RolloutConfig()
    pool: PoolConfig | None = Field(
        PoolConfig(),
        description="How sandboxes are kept and reused between episodes; null: each episode starts and stops its own.",
    )
    observers: Annotated[tuple[PluginChoice, ...], PluginField(HOOKS)] = Field(
        (), description="Observers of the run (plugins of kind hooks): a list of names, or of sections with 'use'."
    )

    def __repr__(self) -> str:
        """Name the plugins and the other sections, without their keys."""
        parts = []
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, PluginChoice | PluginRules):
                parts.append(f"{name}={value.use}")
            elif value is not None and value != field.default:
                parts.append(f"{name}=..." if isinstance(value, Section | tuple) else f"{name}={value!r:.60}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def plugins(self) -> Iterator[tuple[str, str, PluginChoice]]:
        """Yield every plugin that is started: its YAML path, kind, choice."""
        yield from choices_in(self)
