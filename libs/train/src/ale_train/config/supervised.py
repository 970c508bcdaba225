"""This module defines the keys of two sections of a run file: `cpt`, continual pre-training on text, and `sft`,
fine-tuning on trajectories in one or several stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, field_validator, model_validator

from ale.config.plugin_field import PluginField
from ale.registry.user_functions import FunctionSetting
from ale.registry.validation import Mistake, Mistakes
from ale.specs.choice import Overlong, PluginChoice, Section

EVERY = Field(
    100,
    ge=0,
    description=(
        "Optimizer steps between checkpoints, from which an interrupted stage goes on (`ale run --resume`); the newest "
        "is kept. One more is written when the run is stopped; 0: only that one."
    ),
)
TEXT_SUFFIXES = (".txt", ".md", ".jsonl")


class CPTStage(Section):
    """One stage of continual pre-training: data of its own, a constant learning rate."""

    data: tuple[Path, ...] = Field(
        min_length=1,
        description=f"Files, or folders with files, of text ({', '.join(TEXT_SUFFIXES)}); in .jsonl each line has a "
        "key 'text'.",
    )
    steps: int = Field(gt=0, description="Optimizer steps. Data that runs out is used again from its beginning.")
    batch_tokens: int = Field(32_768, gt=1, description="Tokens per step, a multiple of sequence_tokens.")
    sequence_tokens: int = Field(1024, gt=1, description="Tokens per sequence, at most the model's context.")
    lr: float = Field(3e-5, gt=0, description="Learning rate, constant.")
    weight_decay: float | tuple[float, float] | None = Field(
        None,
        description="Weight decay: a number, or [from, to] changing linearly over the stage; null: the trainer's own.",
    )

    @model_validator(mode="after")
    def _whole_sequences(self) -> CPTStage:
        if self.batch_tokens % self.sequence_tokens:
            raise ValueError(
                f"batch_tokens ({self.batch_tokens}) must be a multiple of sequence_tokens ({self.sequence_tokens})"
            )
        decay = self.weight_decay
        if any(value < 0 for value in (decay if isinstance(decay, tuple) else (decay or 0.0,))):
            raise ValueError("weight_decay must not be below 0")
        return self

    @property
    def sequences(self) -> int:
        """Sequences per step."""
        return self.batch_tokens // self.sequence_tokens

    def weight_decay_at(self, step: int) -> float | None:
        """Return the weight decay of a step (counted from 0); it changes linearly from the first step to the last."""
        if not isinstance(self.weight_decay, tuple):
            return self.weight_decay
        first, last = self.weight_decay
        return first + (last - first) * step / max(1, self.steps - 1)


class CPTConfig(Section):
    """Continual pre-training: the policy learns from text, every token of it, before it learns from demonstrations."""

    algorithm: Annotated[PluginChoice, PluginField("algorithm")] = Field(
        "sft",
        validate_default=True,
        description="Algorithm plugin with the supervised loss, which sees each sequence as one turn.",
    )
    stages: tuple[CPTStage, ...] = Field(
        min_length=1,
        description="The stages, one after another.",
    )
    heldout: tuple[Path, ...] = Field(
        (), description="Files as in 'data', whose perplexity is measured before the first stage and after each stage."
    )
    checkpoint_every: int = EVERY


class DemonstrationsConfig(Section):
    """Expert trajectories, really executed in sandboxes."""

    count: int = Field(400, gt=0, description="Number of demonstrations to run.")
    keep_failed: bool = Field(False, description="Keep demonstrations whose tests fail.")
    data: tuple[Path, ...] = Field(
        (),
        description=(
            "Run folders, recordings of `ale endpoint serve`, and data sets (.jsonl, .csv, .parquet, Hugging Face "
            "folders) with rows of messages, or of prompt and completion, that are used as demonstrations; none are "
            "run then. All trajectories of recordings and data sets are kept, because they have no score."
        ),
    )

    tools: tuple[str | dict[str, Any], ...] = Field(
        (),
        description="Tools of rows in 'data' that have no column 'tools': Python functions (./tools.py:search), or "
        "objects in OpenAI's form.",
    )

    @field_validator("tools")
    @classmethod
    def _are_functions(cls, value: tuple[str | dict[str, Any], ...]) -> tuple[str | dict[str, Any], ...]:
        for name in value:
            if isinstance(name, str):
                FunctionSetting(function=name).load()
        return value

    @model_validator(mode="after")
    def _run_or_read(self) -> DemonstrationsConfig:
        if self.data and "count" in self.model_fields_set:
            raise ValueError("'count' says how many to run, and with 'data' none is; leave one out")
        return self


class Curation(Section):
    """Which demonstrations a stage is trained on: those for which all of this holds."""

    passed_only: bool = Field(
        False, description="Keep only demonstrations that passed their tests. Those without a score did not."
    )
    min_reward: float | None = Field(
        None, description="Keep only demonstrations with at least this reward, such as a judge's; null: any reward."
    )
    max_error_turns: int | None = Field(
        None,
        ge=0,
        description="Most turns whose call was malformed or failed, to exclude repair loops; null: any number.",
    )
    max_turn_tokens: int | None = Field(
        None, gt=0, description="Most tokens in a turn, to exclude overthinking; null: any length."
    )
    min_turns: int = Field(1, gt=0, description="Fewest turns, to select long horizons.")
    complete_only: bool = Field(
        False,
        description="Keep only demonstrations that their agent ended itself, with no turn cut by the token limit.",
    )
    tags: tuple[str, ...] = Field(
        (), description="Tags that the task must have, all of them; `!tag`: a tag that it must not have."
    )
    per_task: int | None = Field(
        None,
        gt=0,
        description=(
            "Most demonstrations of one task; the best are kept (highest reward, then fewest error turns, then "
            "fewest turns). null: all."
        ),
    )


class SFTSteps(Section):
    """How one stage of supervised fine-tuning steps."""

    steps: int = Field(120, ge=0, description="Optimizer steps.")
    batch_size: int = Field(32, gt=0, description="Trajectories per step.")
    lr: float = Field(1e-3, gt=0, description="Peak learning rate; it falls along a cosine to a tenth.")
    warmup_steps: int = Field(10, ge=0, description="Steps of linear warm-up.")


class SFTStage(SFTSteps):
    """A stage in `sft.stages`."""

    data: tuple[Path, ...] = Field(
        (), description="Run folders, recordings and data sets that this stage uses in place of sft.demonstrations."
    )
    keep: Curation = Field(Curation(), description="Which demonstrations this stage trains on.")
    algorithm: dict[str, Any] = Field(
        default_factory=dict, description="Settings of sft.algorithm that differ in this stage, such as task_rules."
    )


class SFTConfig(SFTSteps):
    """The supervised warm start: one stage, or several under `stages`, the later ones on fewer and better
    demonstrations."""

    algorithm: Annotated[PluginChoice, PluginField("algorithm")] = Field(
        "sft", validate_default=True, description="Algorithm plugin with the supervised loss."
    )
    demonstrations: DemonstrationsConfig = DemonstrationsConfig()
    max_tokens: int | None = Field(
        None, gt=0, description="Most tokens of one sequence of a demonstration; null: the model's context."
    )
    overlong: Overlong = Field(
        "drop",
        description="Demonstrations with a longer sequence. drop: they are left out, and counted; truncate: the "
        "sequence is cut off there, and what is left of the last reply is trained on; fail: they end the run.",
    )
    stages: tuple[SFTStage, ...] = Field(
        (),
        description="Several stages, one after another, in place of steps, batch_size, lr and warmup_steps.",
    )
    checkpoint_every: int = EVERY
    _algorithms: tuple[tuple[str, PluginChoice], ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _one_way_or_the_other(self) -> SFTConfig:
        beside = [name for name in SFTSteps.model_fields if name in self.model_fields_set]
        if self.stages and beside:
            raise ValueError(
                f"with 'stages' each stage has its own {', '.join(beside)}; leave out what stands beside it"
            )
        unread = self.demonstrations.model_fields_set - {"keep_failed"}
        if self.stages and all(stage.data for stage in self.stages) and unread:
            raise ValueError(
                f"every stage has 'data' of its own, and nothing reads demonstrations.{min(unread)}; leave it out"
            )
        return self

    @property
    def plan(self) -> tuple[SFTStage, ...]:
        """The stages as a list, even if there is only one."""
        return self.stages or (SFTStage(**{name: getattr(self, name) for name in SFTSteps.model_fields}),)

    @property
    def runs_demonstrations(self) -> bool:
        """Whether the run makes demonstrations, instead of only reading some."""
        return not self.demonstrations.data and any(not stage.data for stage in self.plan)

    @model_validator(mode="after")
    def _check_settings_of_stages(self) -> SFTConfig:
        found: list[Mistake] = []
        algorithms: list[tuple[str, PluginChoice]] = []
        for i, stage in enumerate(self.plan):
            if not stage.algorithm:
                algorithms.append(("sft.algorithm", self.algorithm))
                continue
            merged = PluginChoice(use=self.algorithm.use, settings={**self.algorithm.settings, **stage.algorithm})
            try:
                PluginField("algorithm").read_choice(merged, PluginChoice)
            except Mistakes as mistakes:
                found += [(("stages", str(i), "algorithm", *path), sentence) for path, sentence in mistakes.found]
            algorithms.append((f"sft.stages.{i}.algorithm", merged))
        if found:
            raise Mistakes(found).as_validation_error()
        self._algorithms = tuple(algorithms)
        return self

    def algorithms(self) -> tuple[tuple[str, PluginChoice], ...]:
        """Return for each stage its algorithm and the place of the algorithm in the run file."""
        return self._algorithms
