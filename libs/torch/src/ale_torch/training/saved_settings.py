"""The settings that decide what the weights and the optimizer's state of a checkpoint mean. They are saved with it, and
compared before it is restored: most of them change no shape, so that nothing else would show that they differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ale.errors import ConfigError

CONFIG = "config.json"
NO_MEANING = (
    "_name_or_path", "architectures", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "pad_token_id",
    "torch_dtype", "transformers_version", "use_cache",
)  # fmt: skip
"""Keys of config.json that do not change what a model computes from its weights."""
MANY = 3
"""How many keys of config.json a sentence names."""
REASONS = {
    "trainer.lora": "adapters are trained beside frozen weights, and what was saved is another set of them",
    "trainer.lora.rank": "its adapters have other shapes",
    "trainer.lora.alpha": "its adapters would count with another weight (alpha / rank)",
    "trainer.lora.target_modules": "its adapters belong to other layers",
    "trainer.value_head": "a value head is trained with the policy",
    "trainer.dtype": "its weights and its optimizer were kept for computing in that type",
    "trainer.optimizer": "its moments are those of another optimizer",
}


def read_model_settings(folder: Path) -> dict[str, Any]:
    """Return what config.json of a model folder says of how the model computes; nothing if it cannot be read, which
    loading the model reports."""
    try:
        found = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError):
        return {}
    return {name: of for name, of in found.items() if name not in NO_MEANING} if isinstance(found, dict) else {}


def refuse_other_settings(
    checkpoint: Path, saved: Mapping[str, Any], present: Mapping[str, Any], model: Mapping[str, Any]
) -> None:
    """Refuse a checkpoint that was saved with other settings than the trainer's `present` ones, or those of its model.
    Raises `ConfigError`."""
    differences = [
        f"{name} {_show(before)}, and this trainer has {_show(now)}: {REASONS[name]}. Set {name} to {_show(before)}."
        for name, before, now in _find_differences(saved["trainer"], present)
    ]
    changed = list(_find_differences(saved["model"], model)) if model else []
    differences += [
        f"{name} {_show(before)} in its {CONFIG}, which has {_show(now)} now: the same weights are another model with "
        f"it. Write {_show(before)} there again."
        for name, before, now in changed[:MANY]
    ]
    if not differences:
        return
    more = f" {len(changed) - MANY} more keys of its {CONFIG} are others." if len(changed) > MANY else ""
    raise ConfigError(
        f"The checkpoint {checkpoint} was saved with {' It was saved with '.join(differences)}{more} Or begin a run "
        f"from its weights alone (model.path={checkpoint})."
    )


def _find_differences(saved: Mapping[str, Any], present: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield names and both values; dotted names, if both values have keys of their own."""
    for name in sorted({*saved, *present}):
        before, now = saved.get(name), present.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            for key, one, other in _find_differences(before, now):
                yield f"{name}.{key}", one, other
        elif before != now:
            yield name, before, now


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
