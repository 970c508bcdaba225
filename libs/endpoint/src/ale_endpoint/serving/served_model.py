"""Finds what `ale serve` serves: a policy's folder, and the settings with which it answers.

1. A run folder (`config.yaml` is in it) gives its most trained policy, or the one that is named, and its settings of
   `engine`, `session` and `rollout`: the policy answers as in training. The run's other plugins need not be installed.
2. A model folder gives the sampling of its `generation_config.json`, and answers as long as the engine's context.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ale.config.episode import RolloutConfig, SessionConfig
from ale.config.plugin_field import PluginField
from ale.config.references import resolve
from ale.errors import AleError, ConfigError
from ale.registry.drivers import load_driver_class
from ale.registry.validation import format_value, nearest_hint, validate
from ale.specs.choice import PluginChoice, Section
from ale.specs.engine import MessageEngine
from ale.store.run_store import CONFIG_NAME
from ale_train.checkpoints.saved_policies import POLICIES, most_trained, name_policy
from ale_train.config.run_file import apply_override, read_run_file
from ale_train.models.model_files import find_missing_in

SAMPLING = ("temperature", "top_p", "top_k")


class ServingConfig(Section):
    """The sections of a run file that count where a policy is served."""

    seed: int = Field(1, ge=0, description="Seed of sampling.")
    engine: Annotated[PluginChoice, PluginField("engine")] = Field(
        "torch", validate_default=True, description="What samples the policy's tokens."
    )
    session: SessionConfig = Field({}, validate_default=True)
    rollout: RolloutConfig = RolloutConfig()


@dataclass(frozen=True)
class Target:
    """A policy to serve."""

    name: str
    """Its name as a model, such as the run folder's."""
    title: str
    """What it is called in a sentence."""
    folder: Path
    """A whole Hugging Face folder."""
    config: ServingConfig
    max_tokens: int | None
    """The most tokens of one answer; None: as many as the engine's context has."""
    max_context: int | None
    """The most tokens of a conversation; None: the engine's."""
    redact: Callable[[str], str]
    """It removes the secrets of the settings from a text."""


def read_target(
    target: Path, engine: str | None = None, checkpoint: str | None = None, overrides: Sequence[str] = ()
) -> Target:
    """Return what to serve of a run folder or of a model folder, with another engine and other settings if they are
    given. Raises `ConfigError`, `PluginError`."""
    if not target.is_dir():
        raise ConfigError(f"There is no folder {target}: name a run folder, or a Hugging Face model folder.")
    run = target if (target / CONFIG_NAME).is_file() else None
    if run is not None:
        folder = find_policy(run, checkpoint)
        written = {key: value for key, value in read_run_file(run / CONFIG_NAME).items() if key in _sections()}
        name, title = run.resolve().name, name_policy(folder, run)
    else:
        folder, written, name, title = target, {}, target.resolve().name, f"model {target}"
        if checkpoint is not None:
            raise ConfigError(f"--checkpoint {checkpoint}: {target} is no run folder, and holds one model alone.")
    _check_whole(folder, target)
    settings = [*([f"engine.use={engine}"] if engine is not None else []), *overrides]
    for setting in settings:
        _check_section(setting)
        apply_override(written, setting)
    sampled = written.setdefault("rollout", {})
    if run is None and isinstance(sampled, dict):
        written["rollout"] = sampled = {**generation_settings(folder), **sampled}
    values = resolve(written, str(target))
    _check_engine(values.data)
    try:
        config = validate(ServingConfig, values.data)
    except AleError as error:  # its message shows values
        raise ConfigError(values.redact(str(error))) from None
    given = config.rollout.model_fields_set
    return Target(
        name,
        title,
        folder,
        config,
        max_tokens=config.rollout.max_tokens if run is not None or "max_tokens" in given else None,
        max_context=config.rollout.max_context if run is not None or "max_context" in given else None,
        redact=values.redact,
    )


def find_policy(run: Path, checkpoint: str | None) -> Path:
    """Return the model folder of a run's policy: the most trained one, or that of a name (`final`, `sft`, `20`,
    `step_20`). Raises `ConfigError`."""
    held = dict(_policies(run))
    if not held:
        raise ConfigError(
            f"{run} holds no policy yet: a run keeps one when it ends, after each supervised stage, and with "
            "rl.checkpoint_every. Serve a model folder, or another run."
        )
    if checkpoint is None:
        return most_trained(run)
    wanted = f"step_{checkpoint}" if checkpoint.isdecimal() else checkpoint
    if wanted not in held:
        raise ConfigError(
            f"--checkpoint {checkpoint}: {run} holds no such policy.{nearest_hint(wanted, held)} It holds: "
            f"{', '.join(held)}."
        )
    return held[wanted]


def generation_settings(folder: Path) -> dict[str, float]:
    """Return the sampling that a model's `generation_config.json` recommends, as keys of `rollout`; nothing where it
    recommends none. Raises `ConfigError`."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    try:
        found: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(found, dict) or not found.get("do_sample"):
        return {}
    return {key: found[key] for key in SAMPLING if found.get(key) is not None}


def _policies(run: Path) -> Iterator[tuple[str, Path]]:
    """Yield the policies of a run by their names, the most trained stage first."""
    for name in POLICIES:
        if (run / "model" / name / "config.json").is_file():
            yield name, run / "model" / name
    steps = [path for path in (run / "checkpoints").glob("step_*") if re.fullmatch(r"step_\d+", path.name)]
    for path in sorted(steps, key=lambda path: int(path.name.removeprefix("step_"))):
        if (path / "config.json").is_file():
            yield path.name, path


def _check_whole(folder: Path, target: Path) -> None:
    """Refuse a folder that is no whole model. Raises `ConfigError`."""
    missing = find_missing_in(folder)
    if not missing:
        return
    if folder == target and not (folder / "config.json").is_file():
        what = f"{target} is neither a run folder (it holds no {CONFIG_NAME}) nor a model folder"
    else:
        what = f"{folder} is no whole model"
    raise ConfigError(
        f"{what}: it lacks {', '.join(missing)}. Save model and tokenizer there with `save_pretrained` of "
        "transformers, or name another folder."
    )


def _check_engine(data: Mapping[str, Any]) -> None:
    """Refuse an engine that is not there, or that has no policy. Raises `ConfigError`, `PluginError`."""
    section = data.get("engine", {})
    name = section.get("use") if isinstance(section, dict) else None
    if isinstance(name, str) and issubclass(load_driver_class("engine", name), MessageEngine):
        raise ConfigError(
            f"engine: '{name}' answers with messages of another model, and not with this policy; name an engine that "
            "samples (--engine torch), or serve that model with `ale endpoint serve`."
        )


def _sections() -> list[str]:
    return list(ServingConfig.model_fields)


def _check_section(override: str) -> None:
    """Refuse a setting that would change nothing here. Raises `ConfigError`."""
    section = override.partition("=")[0].removeprefix("~").partition(".")[0].strip()
    if section not in _sections():
        raise ConfigError(
            f"The setting {format_value(override)} changes nothing where a policy is served."
            f"{nearest_hint(section, _sections())} Settings of these sections do: {', '.join(_sections())}."
        )
