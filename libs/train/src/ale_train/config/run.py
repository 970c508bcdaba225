"""The run file as typed models: a run has the keys of an episode (`ale.config.episode`) and those of training.

Every section has one meaning, whatever else is installed; only the plugins that it names must be.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from ale.config.episode import EpisodeConfig
from ale.config.plugin_field import PluginField, choices_in
from ale.specs.choice import PluginChoice, Section
from ale_train.config.evaluation import EvaluationConfig
from ale_train.config.rl import RLConfig
from ale_train.config.scratch_model import ScratchModel
from ale_train.config.supervised import CPTConfig, SFTConfig

OWN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
"""The variables of a chat template that the session sets."""


class ModelConfig(Section):
    """The policy to start from: a Hugging Face folder, or a small model with random weights."""

    path: Path | None = Field(
        None, description="Folder of a causal language model and its tokenizer, or its name on the Hugging Face hub."
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a model on the hub; null: main.")
    scratch: ScratchModel | None = Field(
        None, description="Create a small model from nothing; its tokenizer is trained on the demonstrations."
    )
    chat_template: Path | None = Field(
        None, description="File with the chat template (Jinja) to use in place of the model's own."
    )
    template_arguments: dict[str, Any] = Field(
        {}, description="Variables for the chat template, such as enable_thinking: false."
    )

    @field_validator("template_arguments")
    @classmethod
    def _names_of_variables(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not name.isidentifier() or name in OWN_VARIABLES:
                raise ValueError(
                    f"'{name}' is no variable to set: give the name of a variable that the template reads, other than "
                    f"{', '.join(OWN_VARIABLES)}"
                )
        return value

    @model_validator(mode="after")
    def _one_of_them(self) -> ModelConfig:
        if self.path is not None and self.scratch is not None:
            raise ValueError("give either 'path' or 'scratch', not both")
        if self.revision is not None and self.path is None:
            raise ValueError("'revision' is of the model that 'path' names; give a 'path', or leave it out")
        for key in ("chat_template", "template_arguments"):
            if getattr(self, key) and self.path is None:
                raise ValueError(f"'{key}' is for the model that 'path' names; give a 'path', or leave it out")
        return self


class RunConfig(EpisodeConfig):
    """A whole run."""

    name: str = Field("run", pattern=r"^[\w.-]+$", description="First part of the run folder's name.")
    run_dir: Annotated[Path, AfterValidator(lambda path: Path(os.path.expanduser(path)))] = Field(
        Path("runs"), description="Folder in which run folders are created; ~ is the home folder."
    )
    model: ModelConfig = ModelConfig()
    trainer: Annotated[PluginChoice | None, PluginField("trainer")] = Field(
        "torch", validate_default=True, description="What updates the weights; null if nothing is trained."
    )
    algorithm: Annotated[PluginChoice, PluginField("algorithm")] = Field(
        "ipa", validate_default=True, description="What computes the loss and decides where rollouts start."
    )
    cluster: Annotated[PluginChoice | None, PluginField("cluster")] = Field(
        None, description="On which nodes engines, trainer ranks and rollouts are placed; null: in this process."
    )
    cpt: CPTConfig | None = Field(
        None, description="Continual pre-training on text; without this section there is none."
    )
    sft: SFTConfig | None = Field(None, description="The supervised warm start; without this section there is none.")
    rl: RLConfig | None = Field(None, description="Reinforcement learning; without this section there is none.")
    eval: EvaluationConfig | None = Field(EvaluationConfig(), description="Held-out evaluation; null: none.")

    @property
    def trains(self) -> bool:
        """Whether the run has a stage that updates weights."""
        return any(section is not None for section in (self.cpt, self.sft, self.rl))

    def stage_algorithms(self) -> dict[str, PluginChoice]:
        """Return the algorithms of the stages before reinforcement learning, by their paths in the run file."""
        found = {"cpt.algorithm": self.cpt.algorithm} if self.cpt is not None else {}
        return found | dict(self.sft.algorithms() if self.sft is not None else ())

    def plugins(self) -> Iterator[tuple[str, str, PluginChoice]]:
        """Yield every plugin that the run starts: YAML path, kind, choice."""
        yield from (found for found in choices_in(self) if found[0].partition(".")[0] not in ("cpt", "sft", "rl"))
        yield from ((path, "algorithm", choice) for path, choice in self.stage_algorithms().items())
