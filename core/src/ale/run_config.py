"""The run configuration as typed models: what each key of a run file means, with its default.

A plugin section (`sandbox`, `engine`, ...) is a plugin's name, or a mapping whose `use` is the name and whose other
keys belong to the plugin's own `Config`; `ale.config` splits the two and validates both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, SecretStr, field_validator, model_validator

from ale.config_base import RULES_KEY, PluginChoice, PluginRules, Section
from ale.specs.kinds import CAPABILITIES, HOOKS
from ale.specs.sandbox import ALLOW, NetworkMode, Resources, host_and_port
from ale.specs.trainer import ScratchModel
from ale.supervised_config import CPTConfig, SFTConfig

Kind = Literal["sandbox", "engine", "trainer", "algorithm", "scaffold", "reward", "tasks"]


class ModelConfig(Section):
    """The policy to start from: a Hugging Face folder, or a small one made from nothing."""

    path: Path | None = Field(None, description="Folder with a causal language model and its tokenizer.")
    scratch: ScratchModel | None = Field(
        None, description="Make a small model; its tokenizer is trained on the demonstrations."
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> ModelConfig:
        if self.path is not None and self.scratch is not None:
            raise ValueError("give either 'path' or 'scratch', not both")
        return self


DEFAULT_RESOURCES = Resources(memory_mib=512, pids=128, disk_mib=64)


class SandboxNeeds(Section):
    """What every sandbox of the run gets, and what its plugins must be able to do."""

    resources: Resources = Field(
        DEFAULT_RESOURCES,
        description="Limits of one sandbox: a key left out has its default, null the provider's own limit. Where none is "
        "given, a sandbox without the capability `limits` is asked for none.",
    )
    network: NetworkMode = Field("none", description="none, endpoint-only, allow or full.")
    allow: tuple[str, ...] = Field((), description=ALLOW)
    capabilities: dict[Kind, tuple[str, ...]] = Field(
        default_factory=dict,
        description="What else the run's plugins must be able to do: kind -> capabilities, such as sandbox: [limits].",
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
        """Whether the run file itself asks for limits."""
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


class PoolConfig(Section):
    """How the sandboxes of the episodes are kept: warm ones, used again where that is safe, and never too many."""

    max_uses: int = Field(
        32,
        gt=0,
        description="Episodes that a sandbox serves, one after the other. In between it is reset, and used again only where "
        "its provider shows that nothing is left (capability `reset`). 1: a new one for each episode.",
    )
    warm: int = Field(
        0,
        ge=0,
        description="Sandboxes of each kind (image, limits, network) that are kept ready before they are asked for; needs a "
        "provider with the capability `reset`.",
    )
    max_sandboxes: int | None = Field(
        None,
        gt=0,
        description="Sandboxes of one provider at once, warm ones too; episodes wait for one. null: no limit.",
    )
    starts_at_once: int = Field(8, gt=0, description="Sandboxes of one provider that are started at the same time.")
    wait_s: float = Field(
        300.0, gt=0, description="Seconds that an episode waits for its turn before that counts as a failure."
    )
    idle_s: float = Field(
        300.0, gt=0, description="Stop a sandbox that nobody used for so long, unless it is to be warm."
    )


class RolloutConfig(Section):
    """How episodes run, in training and in evaluation alike."""

    concurrency: int = Field(64, gt=0, description="Episodes at once.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature in training.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling in training.")
    top_k: int = Field(0, ge=0, description="Sample among the k most likely tokens only; 0: all.")
    max_calls: int = Field(8, gt=0, description="Model calls of one episode.")
    max_tokens: int = Field(128, gt=0, description="Tokens of one response.")
    max_context: int = Field(1024, gt=0, description="Tokens of one context window, prompt and response.")
    max_sampled_tokens: int | None = Field(
        None,
        gt=0,
        description="Tokens that the model may sample in one episode, all its responses together; null: any.",
    )
    timeout_s: float = Field(120.0, gt=0, description="Seconds of one episode.")
    side_calls: Literal["no_tools", "none"] = Field(
        "no_tools",
        description="Which model calls are not trained on: no_tools: those without tools (titles, summaries) of an agent that "
        "has tools; none: all are.",
    )
    replay_ignore: tuple[str, ...] = Field(
        (),
        description="Regular expressions of what may differ in observations (times, ids) when an expert is replayed, and in the "
        "answers of deterministic tools.",
    )
    start_states: Literal["replay", "snapshot"] = Field(
        "replay",
        description="How a sandbox comes into the state behind an expert's chunks: replay: their commands are run again, in every "
        "rollout; snapshot: once, and rollouts start from forks of it (capability `snapshot`). Agents that run inside the sandbox, or "
        "that keep a shell, are replayed all the same.",
    )
    max_resamples: int = Field(
        2, ge=0, description="Times a rejected episode (a fault of sandbox or engine, say) is made anew."
    )
    max_illegal_calls: int = Field(
        0, ge=0, description="Reject an RL rollout with this many illegal tool calls of the policy in a row; 0: never."
    )
    deterministic_tools: tuple[str, ...] = Field(
        (),
        description="Tools whose answer depends on the task and their arguments alone, beside those that a scaffold says are: a "
        "rollout in which one answers otherwise than to the identical call before is rejected.",
    )

    @field_validator("replay_ignore")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return value


class ExpertsConfig(Section):
    """Trajectories that passed, from whose chunks the algorithm may start rollouts; shown to it task by task."""

    demonstrations: bool = Field(True, description="Those of the warm start (sft.demonstrations), where there is one.")
    demonstrate: int = Field(
        0, ge=0, description="Tries of the task source's demonstrator for a task of which no expert is known."
    )
    data: tuple[Path, ...] = Field((), description="Run folders whose trajectories of the split `train` are experts.")

    @field_validator("data")
    @classmethod
    def _run_folders(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        for path in value:
            if not (path / "run.db").is_file():
                raise ValueError(f"{path} is no run folder (it holds no run.db)")
        return value

    @model_validator(mode="after")
    def _from_somewhere(self) -> ExpertsConfig:
        if not (self.demonstrations or self.demonstrate or self.data):
            raise ValueError("no experts come from anywhere: set demonstrations, demonstrate or data")
        return self


class RLConfig(Section):
    """Reinforcement learning."""

    steps: int = Field(45, ge=0, description="Steps, each with rollouts and an update.")
    prompts_per_step: int = Field(
        8, gt=0, description="Tasks a step; the algorithm's group_size says how many rollouts each."
    )
    instances: Path | None = Field(
        None,
        description="Train on these tasks of the split `train` alone: the report of `ale tasks select`, or a JSON list of ids. "
        "null: on all.",
    )
    resample_even_groups: int = Field(
        0,
        ge=0,
        description="Dynamic sampling: replace a task whose rollouts all got the same reward by the next one, up to so many times "
        "a step; 0: train on what came.",
    )
    updates_per_step: int = Field(1, gt=0, description="Optimizer steps over disjoint parts of the step's batch.")
    lr: float | None = Field(
        None,
        gt=0,
        description="Learning rate of the first step, falling linearly to a tenth at the last; "
        "null: the trainer's own, constant.",
    )
    experts: ExpertsConfig | None = Field(
        None,
        description="Show the algorithm trajectories that passed, to start rollouts from (ipa); {}: demonstrations.",
    )
    simulated_lag: int = Field(
        0,
        ge=0,
        description="Train on the rollouts of so many steps before, as an asynchronous run would; 0: on those just made.",
    )
    min_entropy: float = Field(
        0.02,
        ge=0,
        description="Stop the run when the policy's mean entropy (nats) stays below this for 5 steps while success from the "
        "beginning falls below half of its best; 0: never.",
    )
    checkpoint_every: int = Field(
        0, ge=0, description="Save the trainer's state every so many steps; 0: only at the end."
    )

    @model_validator(mode="after")
    def _even_groups_tell_of_starts(self) -> RLConfig:
        if self.experts is not None and self.resample_even_groups:
            raise ValueError(
                "resample_even_groups takes away the groups by which experts are judged (all passed from this start, all "
                "failed from that one); leave it or experts out"
            )
        return self


class EvalConfig(Section):
    """Held-out evaluation, always from the beginning of the task."""

    episodes: int = Field(
        128, gt=0, description="Episodes of one evaluation; where there are fewer tasks, they come again."
    )
    every: int = Field(15, ge=0, description="Also evaluate every so many RL steps; 0: only before and after.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature.")
    split: str = Field("heldout", description="Split of the task source.")


class UpstreamConfig(Section):
    """Another server's model."""

    url: str = Field(description="OpenAI-compatible API, such as https://host/v1.")
    model: str = Field(min_length=1, description="Name of the model there.")
    key: SecretStr | None = Field(
        None, description="Its key, as ${oc.env:NAME}: it stands in no file, so the run file may not hold it either."
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="Goes into every request, such as {temperature: 0.7, max_tokens: 4096}; what is not here is the server's own "
        "choice, not `rollout`'s or `eval`'s.",
    )
    timeout_s: float = Field(600.0, gt=0, description="Seconds of one try of a call.")

    @field_validator("parameters")
    @classmethod
    def _not_the_endpoints_own(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in ("messages", "tools", "model", "n", "stream"):
            if name in value:
                raise ValueError(f"'{name}' is for the endpoint to say; leave it out")
        return value


class EndpointConfig(Section):
    """The model endpoint."""

    upstream: UpstreamConfig | None = Field(
        None,
        description="Another server's model (a teacher) that answers in the policy's place, for `--only rollout` and `ale eval`. "
        "The engine is then not started, and may be null.",
    )

    http: bool = Field(
        False,
        description="Also serve HTTP on a loopback port, for agents in processes of their own. "
        "Sandboxes with needs.network: endpoint-only have it in any case.",
    )
    unix: Path | None = Field(
        None,
        description="Also serve at this Unix socket, whose folder containers without a network can be given; inside them "
        "`ale endpoint relay` makes it a port.",
    )
    tool_format: PluginChoice = Field(
        PluginChoice(use="hermes"), description="How tool calls stand in the model's text: hermes, llama, qwen_xml, ..."
    )
    thoughts: tuple[str, str] | None = Field(
        ("<think>", "</think>"),
        description="Between which marks the model thinks; agents get it as reasoning, not as text. null: it is text.",
    )


class RunConfig(Section):
    """A whole run."""

    name: str = Field("run", pattern=r"^[\w.-]+$", description="First part of the run folder's name.")
    seed: int = Field(1, ge=0, description="Seeds tasks, weights and sampling.")
    run_dir: Path = Field(Path("runs"), description="Folder in which run folders are made.")
    model: ModelConfig = ModelConfig()
    tasks: PluginChoice | PluginRules = Field(description="Where the tasks come from.")
    scaffold: PluginChoice | PluginRules = Field(PluginChoice(use="iflow"), description="The agent around the model.")
    sandbox: PluginChoice | PluginRules = Field(
        PluginChoice(use="local"), description="Where the agent's commands run."
    )
    reward: PluginChoice | PluginRules = Field(PluginChoice(use="tests"), description="What scores an episode.")
    engine: PluginChoice | None = Field(
        PluginChoice(use="torch"), description="What samples the policy's tokens; null goes with endpoint.upstream."
    )
    trainer: PluginChoice | None = Field(
        PluginChoice(use="torch"), description="What updates the weights; null where nothing is trained."
    )
    algorithm: PluginChoice = Field(PluginChoice(use="ipa"), description="The loss, and where rollouts start.")
    needs: SandboxNeeds = SandboxNeeds()
    endpoint: EndpointConfig = EndpointConfig()
    rollout: RolloutConfig = RolloutConfig()
    pool: PoolConfig = PoolConfig()
    cpt: CPTConfig | None = Field(None, description="Continual pre-training on text; leave it out to go without.")
    sft: SFTConfig | None = Field(None, description="The supervised warm start; leave it out to go without.")
    rl: RLConfig | None = Field(None, description="Reinforcement learning; leave it out to go without.")
    eval: EvalConfig = EvalConfig()
    observers: tuple[PluginChoice, ...] = Field(
        (), description="Observers (plugins of kind hooks) of the run: a list of names or of sections with 'use'."
    )

    @property
    def trains(self) -> bool:
        """Whether it has a stage that updates weights."""
        return bool(self.cpt or self.sft or self.rl)

    @model_validator(mode="after")
    def _somebody_answers(self) -> RunConfig:
        if self.engine is None and self.endpoint.upstream is None:
            raise ValueError("'engine' is null, and nothing else answers: name an engine, or give endpoint.upstream")
        return self

    def plugins(self) -> Iterator[tuple[str, str, PluginChoice]]:
        """Every plugin of the run that is started: YAML path, kind, choice."""
        for kind in get_args(Kind):
            choice = getattr(self, kind)
            if isinstance(choice, PluginRules):
                for i, rule in enumerate(choice.rules):
                    yield f"{kind}.{RULES_KEY[kind]}.{i}", kind, rule
            elif choice is not None and not (kind == "engine" and self.endpoint.upstream is not None):
                yield kind, kind, choice
        yield "endpoint.tool_format", "tool_format", self.endpoint.tool_format
        if self.cpt is not None:
            yield "cpt.algorithm", "algorithm", self.cpt.algorithm
        if self.sft is not None:
            yield from ((path, "algorithm", choice) for path, choice in self.sft.algorithms())
        for i, choice in enumerate(self.observers):
            yield f"observers.{i}", HOOKS, choice
