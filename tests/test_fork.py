"""`ale run FILE --fork RUN[@STEP]`: a new run with the weights, the optimizer and the curriculum of another one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ale_command import TINY, ale, summary_of

import ale_train
from ale.errors import ConfigError
from ale.store.run_store import RunStore

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]
ALONE = ("engine.max_batch=1", "rollout.concurrency=1")  # so that the engine always rounds alike
EXPERTS = ("algorithm.start=rollback", "algorithm.refresh_every=2", "algorithm.experts={}")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of four steps with experts, whose checkpoints of the steps 2, 3 and 4 are kept."""
    folder = tmp_path_factory.mktemp("source")
    file, run = folder / "run.yaml", folder / "run"
    file.write_text(TINY.format(runs=folder / "runs"))
    kept = ("rl.steps=4", "rl.checkpoint_every=1", "rl.checkpoint_keep=3")
    summary_of(ale("run", file, *kept, *ALONE, *EXPERTS, "--out", run))
    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The run file of that run."""
    path = tmp_path / "run.yaml"
    path.write_text(TINY.format(runs=tmp_path / "runs"))
    return path


def refusal(*arguments: str | Path) -> str:
    """The sentence with which a command is refused."""
    done = ale(*arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def tokens(run: Path, step: int) -> list[Any]:
    """What the policy said in the evaluation at a step."""
    with RunStore.open(run) as store:
        episodes = store.trajectories("stage = 'eval' AND step = ?", (step,))
        return sorted((t.task_id, t.seed, [s.token_ids for s in t.sequences]) for t in episodes)


def curriculum(run: Path, step: int) -> dict[str, Any]:
    state = json.loads((run / "checkpoints" / f"step_{step}" / "loop.json").read_text())
    return dict(state["algorithm"])


def test_a_fork_begins_with_weights_optimizer_and_curriculum_of_a_step(
    source: Path, file: Path, tmp_path: Path
) -> None:
    run = tmp_path / "fork"
    done = ale("run", file, "--fork", f"{source}@3", "trainer.lr=0.001", "--out", run, *ALONE, *EXPERTS)
    summary = summary_of(done)
    assert f"The run begins with step 3 of {source}, and counts its steps from 1." in done.stderr
    assert list(summary["heldout"]) == ["before_rl", "step_1", "after_rl"]
    assert tokens(run, 0) == tokens(source, 3), "the same policy"
    theirs, ours = source / "checkpoints" / "step_3", run / "checkpoints" / "step_0"
    files = {path.relative_to(theirs) for path in theirs.rglob("*") if path.is_file()}
    assert {path.relative_to(ours) for path in ours.rglob("*") if path.is_file()} == files
    assert {path for path in files if (theirs / path).read_bytes() != (ours / path).read_bytes()} == {Path("loop.json")}
    before, after = curriculum(source, 3), curriculum(run, 0)
    assert before["pointers"] == after["pointers"]
    assert before["experts"]["outside"] == after["experts"]["outside"]
    assert after["experts"]["refreshed_at"] == before["experts"]["refreshed_at"] - 3
    assert before["placed"].keys() == after["placed"].keys()
    with RunStore.open(run) as store:
        assert {stage for stage in store.stages() if stage != "eval"} == {"rl"}, "supervised stages are not run again"
        assert [step for step, _ in store.metrics("rl")["lr"]] == [1, 2]
        assert {value for _, value in store.metrics("rl")["lr"]} == {0.001}
        assert store.count("stage = 'demonstrations'") == 12
        assert [value for _, value in store.metrics("rl")["tokens/lost"]] == [0, 0]
        ordinals = [ordinal for (ordinal,) in store.rows("SELECT DISTINCT ordinal FROM trained ORDER BY 1")]
    assert ordinals == [0, 1, 2, 3]
    assert not (run / "model" / "sft").exists()


def test_a_fork_needs_the_other_run_no_more(source: Path, file: Path, tmp_path: Path) -> None:
    other, run = shutil.copytree(source, tmp_path / "other"), tmp_path / "fork"
    summary_of(ale("run", file, "--fork", other, "rl.steps=1", "--out", run, *ALONE, *EXPERTS))
    shutil.rmtree(other)
    done = ale("run", "--resume", run, "rl.steps=3")
    assert "The run goes on after step 1." in done.stderr
    assert list(summary_of(done)["heldout"]) == ["before_rl", "step_1", "step_2", "after_rl"]
    whole = tmp_path / "whole"
    summary_of(ale("run", file, "--fork", source, "rl.steps=3", "--out", whole, *ALONE, *EXPERTS))
    name = Path("model", "final", "model.safetensors")
    assert (run / name).read_bytes() == (whole / name).read_bytes(), "also a fork goes on as if it had made all at once"


def test_a_fork_that_was_killed_before_its_first_step_goes_on(source: Path, file: Path, tmp_path: Path) -> None:
    run = tmp_path / "fork"
    summary_of(ale("run", file, "--fork", source, "rl.steps=1", "--out", run))
    (run / "summary.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step_1")
    (run / "checkpoints" / "LATEST").write_text("step_0\n")
    with RunStore.create(run) as store:
        store.change(("DELETE FROM events WHERE kind = 'run_finished'", [()]))
    done = ale("run", "--resume", run)
    assert list(summary_of(done)["heldout"]) == ["before_rl", "after_rl"]
    with RunStore.open(run) as store:
        assert store.count("stage = 'eval' AND step = 0") == 4, "the evaluation before it was not made again"


def test_only_checkpoints_that_are_there_can_be_forked(source: Path, file: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "fork")
    gone = refusal("run", file, "--fork", f"{source}@1", *out)
    assert f"{source} holds no checkpoint of step 1; there are those of the steps 2, 3, 4 (rl.checkpoint_every" in gone
    assert "after the @ must be the number of a step; there are the steps 2, 3, 4." in refusal(
        "run", file, "--fork", f"{source}@last", *out
    )
    assert "there is no run folder" in refusal("run", file, "--fork", tmp_path, *out)
    assert "there is no run folder" in refusal("run", file, "--fork", f"{tmp_path / 'nowhere'}@2", *out)
    without = shutil.copytree(source, tmp_path / "without")
    shutil.rmtree(without / "checkpoints")
    assert "holds no checkpoint of reinforcement learning; begin with a policy" in refusal(
        "run", file, "--fork", without, *out
    )
    damaged = shutil.copytree(source, tmp_path / "damaged")
    (damaged / "checkpoints" / "step_4" / "loop.json").write_text("half")
    assert f"The checkpoint {damaged}/checkpoints/step_4 cannot be copied" in refusal(
        "run", file, "--fork", damaged, *out
    )
    assert not (tmp_path / "fork" / "run.db").exists(), "nothing has begun"


def test_a_fork_with_another_model_is_refused_and_one_without_takes_that_of_its_checkpoint(
    source: Path, file: Path, tmp_path: Path
) -> None:
    other = refusal("run", file, "--fork", source, "model.scratch.hidden_size=64", "model.scratch.vocab_size=300")
    assert "cannot change model.scratch.hidden_size, model.scratch.vocab_size: leave the section model out" in other
    final = source / "model" / "final"
    assert "cannot change model.path, model.scratch" in refusal(
        "config", "validate", file, "--fork", source, "model.scratch=null", f"model.path={final}"
    )
    valid = ale("config", "validate", file, "--fork", source)
    assert valid.stdout.splitlines()[-1] == f"{file} is valid.", valid.stderr
    less = ("~model", "sft=null", "rl.steps=1", "eval=null")
    summary_of(ale("run", file, "--fork", source, *less, "--out", tmp_path / "fork"))
    assert "hidden_size: 32" in (tmp_path / "fork" / "config.yaml").read_text()


def test_a_fork_is_a_run_of_the_whole_loop(source: Path, file: Path, tmp_path: Path) -> None:
    for option in (("--resume",), ("--only", "rollout"), ("--from", source)):
        said = refusal("run", file, "--fork", source, *option)
        assert "--fork begins a new run of the whole loop; leave out --resume, --only and --from." in said
    assert "the run file has no section 'rl'" in refusal("run", file, "--fork", source, "rl=null")


def test_a_fork_with_another_algorithm_leaves_the_curriculum(source: Path, file: Path, tmp_path: Path) -> None:
    settings = ("algorithm={use: pg, group_size: 2}", "rl.steps=1", "eval=null")
    done = ale("run", file, "--fork", source, *settings, "--out", tmp_path / "fork")
    assert summary_of(done)["status"] == "completed"
    assert "The algorithm was 'ipa' and is 'pg': its state is not taken over." in " ".join(done.stderr.split())


def test_an_adapter_of_a_fork_is_of_the_model_that_the_other_run_began_with(file: Path, tmp_path: Path) -> None:
    lora = ("trainer.lora.rank=2", "eval=null", "rl.steps=1")
    summary_of(ale("run", file, *lora, "--out", tmp_path / "run"))
    summary_of(ale("run", file, *lora, "--fork", tmp_path / "run", "--out", tmp_path / "fork"))
    said = refusal("run", file, "trainer.lora.rank=3", *lora[1:], "--fork", tmp_path / "run", "--out", tmp_path / "x")
    assert "Set trainer.lora.rank to 2." in said
    assert "To go on with this run" not in said, "that would be refused again"
    shutil.rmtree(tmp_path / "run")
    settings = json.loads((tmp_path / "fork" / "model" / "final_adapter" / "adapter_config.json").read_text())
    assert (Path(settings["base_model_name_or_path"]) / "model.safetensors").is_file()


def test_python_code_forks_a_run_and_goes_on_with_the_fork(source: Path, file: Path, tmp_path: Path) -> None:
    less = ("rl.steps=1", "eval=null")
    made = ale_train.run(file, *less, fork=f"{source}@2", out=tmp_path / "fork", quiet=True)
    made = ale_train.run(made.folder, "rl.steps=2", resume=True, quiet=True)
    with RunStore.open(made.folder) as store:
        assert store.stages() == ["rl"]
        assert [step for step, _ in store.metrics("rl")["success"]] == [1, 2]
    with pytest.raises(ConfigError, match="fork begins a new run of the whole loop; leave out resume, only and source"):
        ale_train.run(made.folder, fork=source, resume=True)
