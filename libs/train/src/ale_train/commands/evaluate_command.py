"""`ale eval` measures the held-out success of a policy, without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ale.cli.messages import configure_messages
from ale.cli.signals import run_until_signal
from ale.errors import ConfigError
from ale.registry.validation import nearest_hint
from ale.store.run_store import CONFIG_NAME
from ale_train.checkpoints.saved_policies import most_trained, name_policy
from ale_train.commands.run_command import print_result
from ale_train.config.load import LoadedConfig, load_run_config
from ale_train.display.open_display import open_display
from ale_train.pipeline.preflight import plan_run
from ale_train.pipeline.run import run as run_pipeline

EVALUATION = "eval-"
WITHOUT_TRAINING = ("cpt=null", "sft=null", "rl=null", "trainer=null", "model.scratch=null")


def evaluate(
    target: Path,
    model: Path | None,
    overrides: Sequence[str] = (),
    *,
    episodes: int | None = None,
    n: int | None = None,
    sets: Sequence[str] = (),
    out: Path | None = None,
) -> int:
    """Evaluate the policy of a run folder, or of a run file with `--model`; print the summary's path last."""
    loaded = load_evaluation(target, model, overrides, episodes=episodes, n=n, sets=sets)
    with open_display() as progress:
        configure_messages(progress.note, loaded.values.redact)
        if loaded.run.model.path is not None:
            progress.note(f"The policy is {loaded.run.model.path}.")
        plan = plan_run(loaded)
        result = run_until_signal(lambda: run_pipeline(plan, progress, folder=out))
    print_result(result)
    return 0


def load_evaluation(
    target: Path,
    model: Path | None,
    overrides: Sequence[str] = (),
    *,
    episodes: int | None = None,
    n: int | None = None,
    sets: Sequence[str] = (),
) -> LoadedConfig:
    """Return the configuration that only evaluates: of a run folder's policy (by default the most trained one), or of a
    run file's, with the model folder `model` if it is given. `episodes` and `n` count for every evaluation set; `sets`
    names the sets to evaluate, or all of them if it is empty. Raises `ConfigError`."""
    settings = [*WITHOUT_TRAINING]
    run = target.resolve() if target.is_dir() else None
    if run is not None:
        if not (target / CONFIG_NAME).is_file():
            raise ConfigError(f"{target} is not a run folder: it holds no {CONFIG_NAME}.")
        model = model or most_trained(target)
        target = target / CONFIG_NAME
        settings += ["model.chat_template=null", "model.template_arguments={}"]  # its policies have them
    if model is not None:
        settings += [f"model.path={json.dumps(str(model))}", "model.revision=null"]
    counts = {key: value for key, value in (("episodes", episodes), ("n", n)) if value is not None}
    settings += [f"eval.{key}={value}" for key, value in counts.items()]
    loaded = load_run_config(target, [*settings, *overrides])
    settings.append(f"name={json.dumps(name_evaluation(loaded.run.name))}")
    written = loaded.values.file.get("eval") or {}
    if "label" not in written:
        path = loaded.run.model.path
        label = f"engine {loaded.run.engine.label}" if path is None else name_policy(path, run)
        settings.append(f"eval.label={json.dumps(label)}")
    chosen = _choose_sets(written.get("sets") or {}, sets, list(counts))
    return load_run_config(target, [*settings, *overrides, *([f"eval.sets={json.dumps(chosen)}"] if chosen else [])])


def name_evaluation(name: str) -> str:
    """Return the name of a run that only evaluates: `runs/` shows it as such."""
    return name if name.startswith(EVALUATION) else f"{EVALUATION}{name}"


def _choose_sets(written: dict[str, dict[str, object]], names: Sequence[str], given: Sequence[str]) -> object:
    """Return the evaluation sets of a run file with these names (all if there are none), without the keys that are
    given for all sets. Raises `ConfigError` for a name that the file does not have."""
    for name in names:
        if name not in written:
            known = f"It has: {', '.join(written)}." if written else "It has none."
            hint = nearest_hint(name, written)
            raise ConfigError(f"--set {name}: the run file has no such set under eval.sets. {known}{hint}")
    return {
        name: {key: value for key, value in (written[name] or {}).items() if key not in given}
        for name in names or written
    }
