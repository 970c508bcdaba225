"""`ale eval` measures the held-out success of a policy, without training."""

from __future__ import annotations

from pathlib import Path

from ale.cli.progress import display
from ale.cli.run_command import configure_messages, print_result, run_until_signal
from ale.config.load import load_run_config
from ale.errors import ConfigError
from ale.pipeline.run import run as run_pipeline
from ale.store.run_store import CONFIG_NAME
from ale_rl.saved_policies import most_trained


def evaluate(target: Path, model: Path | None, episodes: int | None, overrides: list[str]) -> int:
    """Evaluate the policy of a run folder, or of a run file with `--model`; print the summary's path last."""
    if target.is_dir():
        if not (target / CONFIG_NAME).is_file():
            raise ConfigError(f"{target} is not a run folder: it holds no {CONFIG_NAME}.")
        model = model or most_trained(target)
        target = target / CONFIG_NAME
    settings = ["cpt=null", "sft=null", "rl=null", "trainer=null", "model.scratch=null"]
    if model is not None:
        settings.append(f"model.path={model}")
    if episodes is not None:
        settings.append(f"eval.episodes={episodes}")
    loaded = load_run_config(target, [*settings, *overrides])
    with display() as progress:
        configure_messages(progress.note, loaded.values.redact)
        if loaded.run.model.path is not None:
            progress.note(f"The policy is {loaded.run.model.path}.")
        result = run_until_signal(lambda: run_pipeline(loaded, progress))
    print_result(result)
    return 0
