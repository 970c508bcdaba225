"""A finished run goes on with more steps, as a user types it, and equals one that was that long from the beginning."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from ale_command import FINISH, SCRIPTED, TINY, ale, summary_of
from support.forked_ale import ForkedAle

from ale.store.run_store import RunStore
from ale_train.rl import loop
from ale_train.rl.checkpoint import write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]
FIRST, ALL = 2, 4
TIMES = (
    "_s", "seconds", "tokens_per_s", "bubble/trainer", "bubble/engine", "_p50", "_p95",
)  # fmt: skip


def start(folder: Path, name: str, steps: int, *settings: str) -> Path:
    """Make a run of so many steps, and return its folder. With batches of one the engine rounds always alike."""
    file, run = folder / "run.yaml", folder / name
    file.write_text(TINY.format(runs=folder / "runs"))
    summary_of(
        ale("run", file, f"rl.steps={steps}", "engine.max_batch=1", "rollout.concurrency=1", *settings, "--out", run)
    )
    return run


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that made all steps at once."""
    return start(tmp_path_factory.mktemp("at_once"), "run", ALL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that finished after the first steps."""
    return start(tmp_path_factory.mktemp("finished"), "run", FIRST)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return shutil.copytree(finished, tmp_path / "run")


def figures(run: Path) -> dict[tuple[str, str], Any]:
    """All metrics of a run that do not depend on the time that something took."""
    with RunStore.open(run) as store:
        return {
            (stage, name): points
            for stage in store.stages()
            for name, points in store.metrics(stage).items()
            if not (name.endswith(TIMES) or name.startswith(("engine", "pool", "trainer")))
        }


def heldout(summary: dict[str, Any]) -> dict[str, Any]:
    return {label: {"success": of["success"], "step": of["step"]} for label, of in summary["heldout"].items()}


def refusal(*arguments: str | Path) -> str:
    """The sentence with which a command is refused."""
    done = ale(*arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_more_steps_later_are_the_same_as_more_steps_at_once(run: Path, at_once: Path) -> None:
    weights = (run / "model" / "final" / "model.safetensors").read_bytes()
    done = ale("run", "--resume", run, f"rl.steps={ALL}")
    assert f"The run goes on after step {FIRST}." in done.stderr
    summary, whole = summary_of(done), json.loads((at_once / "summary.json").read_text())
    assert figures(run) == figures(at_once)
    assert heldout(summary) == heldout(whole)
    name = Path("model", "final", "model.safetensors")
    assert (run / name).read_bytes() == (at_once / name).read_bytes() != weights
    assert (run / "model" / f"step_{FIRST}" / "model.safetensors").read_bytes() == weights, "the final one of before"
    with RunStore.open(run) as store:
        assert store.meta("saved.final") == str(summary["final_policy_version"])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_finished_run_that_is_stopped_while_it_goes_on_goes_on_once_more(
    how: signal.Signals, run: Path, at_once: Path, tmp_path: Path
) -> None:
    arguments = ["run", "--resume", run, f"rl.steps={ALL}", "rl.checkpoint_every=1"]
    stopped = ForkedAle(["rl", str(ALL), how.name, *arguments], tmp_path, "stops").wait(240)
    assert stopped.returncode == (143 if how is signal.SIGTERM else -how), stopped.stderr
    assert not (run / "model" / "final").exists(), "the policy that it had is not its final one any more"
    summary, whole = summary_of(ale("run", "--resume", run)), json.loads((at_once / "summary.json").read_text())
    assert heldout(summary) == heldout(whole)
    ours, theirs = figures(run), figures(at_once)
    undone = {key for key in ours if key[1].startswith("tokens/")}  # what the kill undid is counted
    assert {key: ours[key] for key in ours.keys() - undone} == {key: theirs[key] for key in theirs.keys() - undone}
    name = Path("model", "final", "model.safetensors")
    assert (run / name).read_bytes() == (at_once / name).read_bytes()


def test_a_finished_run_goes_on_with_other_evaluations_checkpoints_and_limits(run: Path) -> None:
    harmless = (
        "eval.episodes=2", "eval.every=0", "rl.checkpoint_every=1", "rl.checkpoint_keep=1", "rollout.concurrency=4",
        "rollout.timeout_s=60", "rl.stall_s=60", "observers=[print]",
    )  # fmt: skip
    summary = summary_of(ale("run", "--resume", run, f"rl.steps={FIRST + 1}", *harmless))
    assert [(label, of["episodes"]) for label, of in summary["heldout"].items()] == [
        ("before_sft", 4), ("after_sft", 4), ("step_1", 4), (f"step_{FIRST}", 4), ("after_rl", 2),
    ]  # fmt: skip
    assert summary_of(ale("run", "--resume", run, f"rl.steps={FIRST + 2}"))["heldout"][f"step_{FIRST + 1}"]


def test_steps_that_are_made_cannot_be_taken_back(run: Path) -> None:
    said = refusal("run", "--resume", run, "rl.steps=1")
    assert f"rl.steps is 1, but the run in {run} has made {FIRST} steps: give it at least as many" in said
    assert f"ale run {run}/config.yaml --fork {run}@STEP" in said


def test_what_was_learned_with_cannot_change_and_a_fork_is_proposed(run: Path) -> None:
    before = sorted(path.relative_to(run) for path in run.rglob("*"))
    for setting in ("trainer.lr=0.5", "rl.prompts_per_step=3", "seed=7", "model.scratch.layers=2", "tasks.use=data"):
        said = refusal("run", "--resume", run, "rl.steps=9", setting)
        if setting.startswith("tasks"):
            continue  # its own settings are missing
        assert f"A resumed run cannot change {setting.partition('=')[0]}: " in said
        assert f"ale run {run}/config.yaml --fork {run} KEY=VALUE" in said
    assert sorted(path.relative_to(run) for path in run.rglob("*")) == before


def test_a_run_whose_learning_rate_falls_goes_on_with_the_rates_of_the_longer_run(tmp_path: Path) -> None:
    run = start(tmp_path, "run", FIRST, "rl.lr=0.001", "eval=null")
    done = ale("run", "--resume", run, f"rl.steps={ALL}")
    assert f"earlier steps had the rates of a run of {FIRST} steps, those to come have the rates of one of {ALL}." in (
        " ".join(done.stderr.split())
    )
    rates = dict(figures(run)["rl", "lr"])
    assert rates == {1: 0.001, 2: pytest.approx(0.0001), 3: pytest.approx(0.0004), 4: pytest.approx(0.0001)}


def test_a_finished_run_without_its_checkpoint_is_left_as_it_is(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / f"step_{FIRST}")
    said = refusal("run", "--resume", run, f"rl.steps={ALL}")
    assert "the checkpoint to go on from is not there any more" in said
    assert (run / "model" / "final" / "model.safetensors").is_file()


def test_a_supervised_run_goes_on_with_reinforcement_learning(tmp_path: Path) -> None:
    file, run = tmp_path / "run.yaml", tmp_path / "run"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    assert summary_of(ale("run", file, "rl=null", "--out", run))["heldout"].keys() == {"before_sft", "after_sft"}
    assert "is complete; there is nothing to go on with." in refusal("run", "--resume", run)
    summary = summary_of(ale("run", "--resume", run, "rl={steps: 1, prompts_per_step: 2}"))
    assert list(summary["heldout"]) == ["before_sft", "after_sft", "after_rl"]
    with RunStore.open(run) as store:
        assert store.count("stage = 'demonstrations'") == 12, "none was made twice"


def scripted(tmp_path: Path, *settings: str) -> tuple[Path, Path]:
    """A run file whose engine needs no model, and the folder of a dump of rollouts that it made."""
    file, run = tmp_path / "run.yaml", tmp_path / "run"
    file.write_text(SCRIPTED.format(runs=tmp_path / "runs", finish=json.dumps(FINISH)))
    summary_of(ale("run", file, "--only", "rollout", "--out", run, *settings))
    return file, run


def interrupt(run: Path) -> None:
    """Let the run look as if it had been killed before its second step."""
    (run / "summary.json").unlink()
    with RunStore.create(run) as store:
        store.change(
            ("DELETE FROM events WHERE kind = 'run_finished'", [()]),
            ("DELETE FROM metrics WHERE step > 1", [()]),
            ("DELETE FROM trajectories WHERE step > 1", [()]),
        )


def test_an_interrupted_dump_of_rollouts_goes_on_as_a_dump(tmp_path: Path) -> None:
    _, run = scripted(tmp_path)
    with RunStore.open(run) as store:
        first = {t.id for t in store.trajectories("step = 1")}
    interrupt(run)
    assert f"`ale run --resume {run}` goes on with it." in " ".join(ale("show", run).stdout.split())
    summary_of(ale("run", "--resume", run))
    with RunStore.open(run) as store:
        made = list(store.trajectories("stage = 'rl'"))
        assert [data["only"] for _, kind, data in store.events() if kind == "run_resumed"] == ["rollout"]
    assert first <= {t.id for t in made}, "none was made again"
    assert (len(made), {t.step for t in made}) == (8, {1, 2})
    assert "has made its 2 steps" in refusal("run", "--resume", run)
    assert summary_of(ale("run", "--resume", run, "rl.steps=3"))["rollouts"] == 12


def test_a_dump_of_a_trained_policy_goes_on_without_the_run_that_it_came_from(finished: Path, tmp_path: Path) -> None:
    source, run = shutil.copytree(finished, tmp_path / "source"), tmp_path / "run"
    file = tmp_path / "run.yaml"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    summary_of(ale("run", file, "--only", "rollout", "--from", source, "--out", run, "rl.steps=2"))
    interrupt(run)
    shutil.rmtree(source)
    assert summary_of(ale("run", "--resume", run))["rollouts"] == 8
    assert not (run / "model" / "final").exists()


def test_training_on_a_dump_begins_anew(finished: Path, tmp_path: Path) -> None:
    file, run = tmp_path / "run.yaml", tmp_path / "run"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    only = ("--only", "train", "--from", finished, "eval=null", "rl.steps=1")
    summary_of(ale("run", file, *only, "model.scratch=null", "sft=null", "--out", run))
    assert "trains on a dump ('--only train') and leaves no checkpoints" in refusal(
        "run", "--resume", run, "rl.steps=2"
    )


@pytest.mark.parametrize("async_ratio", [0, 1])
def test_tokens_that_were_sampled_while_a_checkpoint_was_written_took_their_time(
    async_ratio: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write_slowly(*arguments: Any) -> None:
        await asyncio.sleep(1)
        await write_checkpoint(*arguments)

    monkeypatch.setattr(loop, "write_checkpoint", write_slowly)
    settings = ("rl.checkpoint_every=1", "eval=null", f"rl.async_ratio={async_ratio}")
    run = start(tmp_path, "run", 3, *settings)
    with RunStore.open(run) as store:
        metrics = store.metrics("rl")
        slowest = {
            step: max(t.seconds for t in store.trajectories("stage = 'rl' AND step = ?", (step,))) for step in (1, 2, 3)
        }
    for (step, speed), (_, tokens) in zip(metrics["tokens_per_s"], metrics["sampled_tokens"], strict=True):
        assert async_ratio or speed <= tokens / slowest[step]
        assert not async_ratio or step == 1 or speed <= tokens, "a second went by with the checkpoint"
