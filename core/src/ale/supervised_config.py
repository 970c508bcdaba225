"""The sections `cpt` and `sft` of a run file: continual pre-training on text, and fine-tuning on trajectories in one stage or several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from ale.config_base import PluginChoice, Section

TEXT_SUFFIXES = (".txt", ".md", ".jsonl")


class CPTStage(Section):
    """One stage of continual pre-training: data of its own, a constant learning rate."""

    data: tuple[Path, ...] = Field(
        min_length=1,
        description=f"Files, or folders with files, of text ({', '.join(TEXT_SUFFIXES)}); in .jsonl each line has a key 'text'.",
    )
    steps: int = Field(gt=0, description="Optimizer steps. Data that runs out begins anew.")
    batch_tokens: int = Field(32_768, gt=1, description="Tokens of one step, a multiple of sequence_tokens.")
    sequence_tokens: int = Field(1024, gt=1, description="Tokens of one sequence, at most the model's context.")
    lr: float = Field(3e-5, gt=0, description="Learning rate, constant.")
    weight_decay: float | tuple[float, float] | None = Field(
        None, description="A number, or [from, to] along a line over the stage; null: the trainer's own."
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

    def weight_decay_at(self, step: int) -> float | None:
        """The weight decay of the step (from 0), on the line from the first step to the last."""
        if not isinstance(self.weight_decay, tuple):
            return self.weight_decay
        first, last = self.weight_decay
        return first + (last - first) * step / max(1, self.steps - 1)


class CPTConfig(Section):
    """Continual pre-training: the policy learns from text, every token of it, before it learns from demonstrations."""

    algorithm: PluginChoice = Field(
        PluginChoice(use="sft"), description="Algorithm plugin with the supervised loss; a sequence is one turn to it."
    )
    stages: tuple[CPTStage, ...] = Field(
        min_length=1,
        description="One after the other.",
    )
    heldout: tuple[Path, ...] = Field(
        (), description="Text, as in 'data', whose perplexity is measured before the first stage and after each."
    )


class DemonstrationsConfig(Section):
    """Expert trajectories, really executed in sandboxes."""

    count: int = Field(400, gt=0, description="Demonstrations to run.")
    keep_failed: bool = Field(False, description="Keep demonstrations whose tests fail.")
    data: tuple[Path, ...] = Field(
        (),
        description="Run folders and recordings (of `ale endpoint serve`) whose trajectories are the demonstrations; none is then "
        "run. Of recordings all are kept, for nothing has scored them.",
    )

    @model_validator(mode="after")
    def _run_or_read(self) -> DemonstrationsConfig:
        if self.data and "count" in self.model_fields_set:
            raise ValueError("'count' says how many to run, and with 'data' none is; leave one out")
        return self


class Curation(Section):
    """Which demonstrations a stage is trained on: those for which all of this holds."""

    passed_only: bool = Field(False, description="Only those that passed their tests; what nothing has scored did not.")
    min_reward: float | None = Field(None, description="Only those with this reward or more, as of a judge; null: any.")
    max_error_turns: int | None = Field(
        None, ge=0, description="No more turns whose call was malformed or failed: no repair loops; null: any number."
    )
    max_turn_tokens: int | None = Field(
        None, gt=0, description="No turn with more tokens: no overthinking; null: any length."
    )
    min_turns: int = Field(1, gt=0, description="No fewer turns: long horizons.")
    complete_only: bool = Field(
        False, description="Only those that their agent ended, without a turn that ran into the token limit."
    )
    tags: tuple[str, ...] = Field((), description="Tags of the task that must all be there; `!tag`: must not.")
    per_task: int | None = Field(
        None,
        gt=0,
        description="Of each task no more than so many, the best: most reward, fewest error turns, fewest turns; null: all.",
    )


class SFTSteps(Section):
    """How one stage of supervised fine-tuning steps."""

    steps: int = Field(120, ge=0, description="Optimizer steps.")
    batch_size: int = Field(32, gt=0, description="Trajectories a step.")
    lr: float = Field(1e-3, gt=0, description="Peak learning rate; falls to a tenth along a cosine.")
    warmup_steps: int = Field(10, ge=0, description="Steps of linear warm-up.")


class SFTStage(SFTSteps):
    """A stage in `sft.stages`."""

    data: tuple[Path, ...] = Field(
        (), description="Run folders and recordings in place of sft.demonstrations, for this stage."
    )
    keep: Curation = Field(Curation(), description="Which of its demonstrations it is trained on.")
    algorithm: dict[str, Any] = Field(
        default_factory=dict, description="Settings of sft.algorithm that are others in this stage, such as task_rules."
    )


class SFTConfig(SFTSteps):
    """The supervised warm start: one stage, or several under `stages`, the later ones on fewer and better demonstrations."""

    algorithm: PluginChoice = Field(PluginChoice(use="sft"), description="Algorithm plugin with the supervised loss.")
    demonstrations: DemonstrationsConfig = DemonstrationsConfig()
    stages: tuple[SFTStage, ...] = Field(
        (),
        description="Several stages, one after the other, in place of steps, batch_size, lr and warmup_steps.",
    )

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
        """The stages, also where there is one."""
        return self.stages or (SFTStage(**{name: getattr(self, name) for name in SFTSteps.model_fields}),)

    @property
    def runs_demonstrations(self) -> bool:
        """Whether demonstrations are to be run, and not only read."""
        return not self.demonstrations.data and any(not stage.data for stage in self.plan)

    def algorithms(self) -> Iterator[tuple[str, PluginChoice]]:
        """For each stage: where its algorithm stands in the run file, and what it is."""
        for i, stage in enumerate(self.plan):
            settings = {**self.algorithm.settings, **stage.algorithm}
            path = f"sft.stages.{i}.algorithm" if stage.algorithm else "sft.algorithm"
            yield path, PluginChoice(use=self.algorithm.use, settings=settings)
