"""Retokenization drift: how training data would change if sampled text were tokenized again instead of keeping the
sampled tokens.

    python benchmarks/drift.py [--run RUN]

For each stage of a run (without `--run`, a short one of the quickstart, some two minutes): the share of model responses
whose text gives other tokens, the share of sampled tokens in such responses, and the share of whole conversations that
differ. An untrained policy samples tokens that its tokenizer would never choose; a trained one sometimes does."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from ale.session.tokenizer import ChatTokenizer
from ale.store.run_store import RunStore
from ale.trajectory import Trajectory

SMALL = (
    "sft.demonstrations.count=300",
    "sft.steps=120",
    "rl.steps=4",
    "rl.prompts_per_step=8",
    "eval.episodes=64",
    "eval.every=0",
)


def short_run(folder: Path) -> Path:
    """Make a run of the quickstart with a small budget."""
    ale = Path(sys.executable).with_name("ale")
    subprocess.run(
        [ale, "run", "examples/quickstart.yaml", "--out", folder, *SMALL], check=True, stdout=subprocess.DEVNULL
    )
    return folder


def drift(trajectories: list[Trajectory], tokenizer: ChatTokenizer) -> tuple[int, float, float, float]:
    """Number of responses; shares of responses, of sampled tokens and of conversations that tokenizing again would
    change."""
    responses = changed = tokens = in_changed = conversations = touched = 0
    for trajectory in trajectories:
        differs = False
        for chunk in trajectory.chunks:
            if not chunk.sampled:
                continue
            ids = list(trajectory.sequences[chunk.sequence].token_ids[chunk.start : chunk.end])
            other = tokenizer.encode(tokenizer.decode(ids)) != ids
            responses, tokens = responses + 1, tokens + len(ids)
            changed, in_changed = changed + other, in_changed + other * len(ids)
            differs |= other
        conversations, touched = conversations + 1, touched + differs
    return responses, changed / max(1, responses), in_changed / max(1, tokens), touched / max(1, conversations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="a finished run folder with a model")
    run = parser.parse_args().run
    with tempfile.TemporaryDirectory() as made:
        folder = run or short_run(Path(made) / "run")
        tokenizer = ChatTokenizer.load(folder / "model" / "final")
        with RunStore.open(folder) as store:
            stages: dict[str, list[Trajectory]] = {}
            for trajectory in store.trajectories("stage != 'demonstrations'"):
                stages.setdefault(f"{trajectory.stage}, step {trajectory.step}", []).append(trajectory)
        print(f"{'stage':<24}{'responses':>10}{'changed':>10}{'tokens':>10}{'conversations':>15}")
        for stage, trajectories in stages.items():
            responses, changed, tokens, touched = drift(trajectories, tokenizer)
            print(f"{stage:<24}{responses:>10}{changed:>10.1%}{tokens:>10.1%}{touched:>15.1%}")


if __name__ == "__main__":
    main()
