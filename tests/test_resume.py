"""`ale run --resume`: a run that was stopped goes on where it was, as a user types it."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from ale_command import TINY, ale, summary_of
from support.forked_ale import ForkedAle

from ale.store.run_store import RunStore

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]
STEPS = 5
LIMIT_S = 240


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that SIGTERM has stopped in its loop, while it trained on its third step."""
    folder = tmp_path_factory.mktemp("stopped")
    file, run = folder / "run.yaml", folder / "run"
    file.write_text(TINY.format(runs=folder / "runs"))
    arguments = ["run", file, f"rl.steps={STEPS}", "rl.checkpoint_every=1", "--out", run]
    done = stopped_ale("rl", 3, signal.SIGTERM, arguments, folder)
    assert done.returncode == 143, done.stderr
    assert newest(run) == 3
    return run


def stopped_ale(
    stage: str, step: int, how: signal.Signals, arguments: Sequence[str | Path], folder: Path
) -> subprocess.CompletedProcess[str]:
    """`ale`, which gets a signal at a step of a stage (`stops.py`)."""
    return ForkedAle([stage, str(step), how.name, *arguments], folder, "stops").wait(LIMIT_S)


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return shutil.copytree(stopped, tmp_path / "run")


def newest(run: Path, stage: str = "step") -> int:
    """The step of the newest checkpoint; 0 if there is none yet."""
    latest = run / "checkpoints" / "LATEST"
    return int(latest.read_text().removeprefix(f"{stage}_")) if latest.exists() else 0


def trained(run: Path) -> list[int]:
    with RunStore.open(run) as store:
        return [ordinal for (ordinal,) in store.rows("SELECT DISTINCT ordinal FROM trained ORDER BY ordinal")]


def test_a_run_that_is_stopped_leaves_a_checkpoint_from_which_it_goes_on(run: Path) -> None:
    last = newest(run)
    assert trained(run) == list(range(2 * last)), "the checkpoint has the last step that was trained"
    done = ale("run", "--resume", run)
    assert f"The run goes on after step {last}." in done.stderr
    assert summary_of(done)["status"] == "completed"
    assert trained(run) == list(range(2 * STEPS))
    with RunStore.open(run) as store:
        assert [step for step, _ in store.metrics("rl")["success"]] == list(range(1, STEPS + 1))
        assert [kind for _, kind, _ in store.events() if kind.startswith("run_")] == [
            "run_started",
            "run_finished",
            "run_resumed",
            "run_finished",
        ]
    again = ale("run", "--resume", run)
    assert again.returncode == 2
    assert again.stderr == (
        f"error: The run in {run} is complete: it has made its {STEPS} steps. Give it more (rl.steps={2 * STEPS}) to "
        f"go on with it; `ale eval {run}` evaluates its policy again.\n"
    )


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(run: Path) -> None:
    damaged = run / "checkpoints" / f"step_{newest(run)}"
    (damaged / "trainer_state.pt").write_bytes(b"half")
    before = newest(run) - 1
    done = ale("run", "--resume", run)
    assert f"{damaged} cannot be read, so an earlier one is used" in done.stderr
    assert f"The run goes on after step {before}." in done.stderr
    assert summary_of(done)["status"] == "completed"
    assert trained(run) == list(range(2 * STEPS))


def test_a_run_of_whose_checkpoints_none_can_be_read_is_refused_and_nothing_is_undone(run: Path) -> None:
    before = trained(run)
    for checkpoint in (run / "checkpoints").glob("step_*"):
        (checkpoint / "trainer_state.pt").write_bytes(b"half")
    done = ale("run", "--resume", run)
    assert done.returncode == 2, done.stderr
    assert f"error: No checkpoint in {run / 'checkpoints'} can be read (the newest one: " in done.stderr
    assert "resume again once that is mended, or remove that folder" in done.stderr
    assert trained(run) == before


def test_the_checkpoint_that_a_run_goes_on_from_stays_while_it_is_in_use(run: Path) -> None:
    first = newest(run)
    assert summary_of(ale("run", "--resume", run, "rl.checkpoint_keep=1"))["status"] == "completed"
    assert sorted(path.name for path in (run / "checkpoints").glob("step_*")) == [f"step_{first}", f"step_{STEPS}"]
    for folder in (run / "model" / "final", run / "checkpoints" / f"step_{STEPS}"):
        assert (folder / "tokenizer.json").is_file(), "the trainer copies it from the folder that it was restored from"


def test_a_run_that_is_stopped_in_its_last_evaluation_keeps_its_steps(tmp_path: Path) -> None:
    file, run = tmp_path / "run.yaml", tmp_path / "run"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    settings = ["rl.checkpoint_every=0", "eval.every=0", "eval.episodes=100"]
    done = stopped_ale("eval", 2, signal.SIGTERM, ["run", file, *settings, "--out", run], tmp_path)
    assert done.returncode == 143, done.stderr
    assert newest(run) == 2
    resumed = summary_of(ale("run", "--resume", run))
    assert resumed["heldout"]["after_rl"]["episodes"] == 100
    assert resumed["seconds"]["total"] > sum(resumed["seconds"][name] for name in ("supervised", "training"))
    assert trained(run) == [0, 1, 2, 3]


TIMES = ("seconds", "tokens_per_s")
SUPERVISED = {
    "sft": ("sft.steps=150", "sft.checkpoint_every=20"),
    "cpt": (
        "cpt={{stages: [{{data: [{text}], steps: 50, batch_tokens: 256, sequence_tokens: 64}}, {{data: [{text}], "
        "steps: 100, batch_tokens: 512, sequence_tokens: 128}}], heldout: [{text}], checkpoint_every: 20}}",
    ),
}


def supervised(folder: Path, name: str, stage: str) -> tuple[list[str | Path], Path]:
    """The arguments of a run with a long supervised stage and no loop, and its folder."""
    file, text, run = folder / "run.yaml", folder / "text.txt", folder / name
    file.write_text(TINY.format(runs=folder / "runs"))
    text.write_text("".join(f"line {n} of {n * n} words\n" for n in range(4000)))
    settings = [setting.format(text=text) if stage == "cpt" else setting for setting in SUPERVISED[stage]]
    return ["run", file, "rl=null", "eval=null", *settings, "--out", run], run


def metrics_of(run: Path, stage: str) -> dict[str, list[tuple[int, float]]]:
    with RunStore.open(run) as store:
        return {name: points for name, points in store.metrics(stage).items() if name not in TIMES}


@pytest.fixture(scope="module", params=["sft", "cpt"])
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A supervised stage and the folder of a run of it that nothing interrupted."""
    folder = tmp_path_factory.mktemp(request.param)
    arguments, run = supervised(folder, "unbroken", request.param)
    done = ForkedAle(arguments, folder).wait(LIMIT_S)
    assert done.returncode == 0, done.stderr
    return request.param, run


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_supervised_stage_goes_on_where_it_was(unbroken: tuple[str, Path], how: signal.Signals) -> None:
    stage, whole = unbroken
    arguments, run = supervised(whole.parent, how.name, stage)
    assert stopped_ale(stage, 67, how, arguments, whole.parent).returncode == (143 if how is signal.SIGTERM else -how)
    done = newest(run, stage)
    assert done == 60 if how is signal.SIGKILL else 67 <= done <= 68, "SIGTERM leaves one more"
    resumed = ale("run", "--resume", run)
    assert summary_of(resumed)["status"] == "completed"
    assert f"The stage {stage} goes on after step {done}." in resumed.stderr
    assert len(metrics_of(run, stage)["loss"]) == 150
    assert metrics_of(run, stage) == metrics_of(whole, stage), "every step once, as without the interruption"


def test_what_decides_what_is_learned_cannot_change_and_the_rest_can(run: Path) -> None:
    done = ale("run", "--resume", run, "rl.prompts_per_step=3", "algorithm.group_size=4", "eval.episodes=2")
    assert done.returncode == 2
    assert "A resumed run cannot change algorithm.group_size, rl.prompts_per_step:" in done.stderr
    asked = ale("run", "--resume", run, "eval.temperature=0.5")
    assert "A resumed run cannot change eval.temperature:" in asked.stderr, "what was sampled before would be mixed in"
    harmless = ("eval.episodes=2", "rollout.concurrency=4", "rl.checkpoint_every=2", "rl.min_entropy=0")
    assert summary_of(ale("run", "--resume", run, f"rl.steps={STEPS + 1}", *harmless))["status"] == "completed"
    assert trained(run) == list(range(2 * STEPS + 2))


def test_without_a_checkpoint_the_loop_begins_anew_with_the_rollouts_that_are_there(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    with sqlite3.connect(run / "run.db") as db:
        of_first = "SELECT id FROM trajectories WHERE stage = 'rl' AND policy_version = 1"
        first = {id for (id,) in db.execute(of_first)}
    assert summary_of(ale("run", "--resume", run))["status"] == "completed"
    assert trained(run) == list(range(2 * STEPS))
    with sqlite3.connect(run / "run.db") as db:
        assert {id for (id,) in db.execute(of_first)} == first, "none was made again"
        lost = db.execute("SELECT COUNT(*) FROM trajectories WHERE rejected = 'lost_version'").fetchone()
    assert lost[0] > 0
    with RunStore.open(run) as store:
        assert min(step for step, _ in store.metrics("rl")["tokens_per_s"]) > 1, (
            "nothing was sampled for the first step"
        )


@pytest.mark.parametrize("option", ["--out", "--from"])
def test_a_resumed_run_takes_no_other_folder(run: Path, tmp_path: Path, option: str) -> None:
    done = ale("run", "--resume", run, option, tmp_path / "other")
    assert done.returncode == 2
    assert "--resume goes on in its run folder; leave out --only, --from and --out" in done.stderr


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    done = ale("run", "--resume", tmp_path)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_holds_a_run_says_how_to_go_on_with_it(run: Path) -> None:
    done = ale("run", run / "config.yaml", "--out", run)
    assert done.returncode == 2
    assert f"{run} holds a run already; go on with it (--resume), give another --out, or remove it." in done.stderr


def test_a_warm_start_that_was_killed_begins_again_with_its_demonstrations(tmp_path: Path) -> None:
    file, run = tmp_path / "run.yaml", tmp_path / "run"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    arguments = ["run", file, "sft.steps=20", "rl.steps=1", "eval.episodes=2", "--out", run]
    assert stopped_ale("sft", 5, signal.SIGKILL, arguments, tmp_path).returncode == -signal.SIGKILL
    assert (run / "model" / "initial" / "model.safetensors").exists()
    assert not (run / "model" / "sft").exists()
    assert summary_of(ale("run", "--resume", run))["status"] == "completed"
    with RunStore.open(run) as store:
        demonstrations = store.count("stage = 'demonstrations'")
    assert demonstrations == 12, "none was made twice"
    assert trained(run) == [0, 1]
