"""These tests make whole runs through the command line, as a user does."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ale_command import FINISH, SCRIPTED, TINY, ale, summary_of
from support.read_alike import assert_read_alike

from ale.messages import Message
from ale.session.tokenizer import ChatTokenizer
from ale.specs.driver import DriverContext
from ale.store.run_store import RunStore
from ale_engine_torch import TorchEngine

RunFile = Callable[[str], Path]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one whole tiny run that several tests look at."""
    folder = tmp_path_factory.mktemp("tiny")
    file = folder / "run.yaml"
    file.write_text(TINY.format(runs=folder / "runs"))
    summary_of(ale("run", file, "--out", folder / "run", "observers=[report]"))
    return folder / "run"


def test_a_run_goes_from_nothing_to_a_report(finished: Path) -> None:
    import json

    summary = json.loads((finished / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["seed"] == 1
    labels = ["before_sft", "after_sft", "step_1", "after_rl"]
    assert list(summary["heldout"]) == labels
    assert all(v["episodes"] == 4 for v in summary["heldout"].values())
    assert {"demonstrations", "supervised", "rollout", "training", "evaluation", "total"} <= set(summary["seconds"])
    assert summary["rollouts"] == 12 + 4 * 4 + 2 * 4
    assert summary["sampled_tokens"] > 0
    assert summary["tokens_per_s"] > 0
    assert summary["peak_memory_mib"] > 50
    assert summary["final_policy_version"] == 3
    assert summary["failures"] == {}
    assert (finished / "report.html").stat().st_size > 5000
    for name in ("initial", "sft", "final"):
        assert (finished / "model" / name / "model.safetensors").is_file()


def test_every_sampled_token_is_kept_with_its_logprob_and_version(finished: Path) -> None:
    with RunStore.open(finished) as store:
        rollouts = list(store.trajectories("stage = 'rl'"))
    assert {t.policy_version for t in rollouts} == {1, 2}
    for t in rollouts:
        assert t.reward is not None
        for chunk in t.chunks:
            assert chunk.sampled
            assert len(chunk.logprobs) == len(chunk.versions) == chunk.end - chunk.start > 0
            assert set(chunk.versions) == {t.policy_version}


def test_a_model_folder_is_one_that_transformers_loads(finished: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(finished / "model" / "final")
    assert model.config.model_type == "llama"
    names = {path.name for path in (finished / "model" / "final").iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    others = {name for name in names if name.endswith(".pt") or (finished / "model" / "final" / name).is_dir()}
    assert not others, "the trainer's state is beside it, in checkpoints/"
    assert (finished / "checkpoints" / "step_2" / "optimizer").is_dir()


@pytest.mark.parametrize("stage", ["initial", "sft", "final"])
async def test_transformers_reads_a_policy_of_each_stage_as_the_engine_does(finished: Path, stage: str) -> None:
    folder = finished / "model" / stage
    async with TorchEngine(TorchEngine.Config(max_batch=2, threads=1), DriverContext(seed=1)) as engine:
        await engine.load_model(folder, ChatTokenizer.load(folder))
        await assert_read_alike(folder, engine)


def test_eval_needs_only_the_run_folder(finished: Path) -> None:
    done = ale("eval", finished, "--episodes", "3", f"run_dir={finished.parent / 'evals'}")
    summary = summary_of(done)
    (result,) = summary["heldout"].items()
    assert result[0] == "final policy of run"
    assert result[1]["episodes"] == 3
    assert "held-out success" in done.stdout
    assert "final policy of run: 0." in done.stdout


def test_eval_takes_the_number_of_runs_of_a_task_and_the_sets_from_the_command_line(finished: Path) -> None:
    sets = "eval.sets={find: {tags: count, temperature: 0.5, episodes: 2}, all: {max_tokens: 4}, other: {}}"
    counts = ("--n", "2", "--episodes", "4", "--set", "find", "--set", "all")
    done = ale("eval", finished, sets, *counts, f"run_dir={finished.parent / 'evals'}")
    (result,) = summary_of(done)["heldout"].values()
    assert list(result["sets"]) == ["find", "all"]
    assert [(of["episodes"], of["tasks"]) for of in result["sets"].values()] == [(4, 2), (4, 2)]
    assert all(
        {"pass@1", "pass@2", "pass^2", "avg@2", "success_low", "branches"} <= set(of) for of in result["sets"].values()
    )
    with RunStore.open(Path(done.stdout.splitlines()[-1]).parent) as store:
        short = list(store.trajectories("stage = 'eval.all'"))
        assert {t.tags[0] for t in store.trajectories("stage = 'eval.find'")} == {"count"}
        assert set(store.stages()) == {"eval", "eval.find", "eval.all"}
    assert max(len(chunk) for t in short for chunk in t.chunks) <= 4


def test_the_halves_of_the_loop_fit_together(finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    dump = tmp_path / "dump"
    rolled = summary_of(ale("run", file, "--only", "rollout", "--from", finished, "--out", dump))
    assert rolled["rollouts"] == 8
    assert rolled["final_policy_version"] == 0
    trained = summary_of(ale("run", file, "--only", "train", "--from", dump, "--out", tmp_path / "trained"))
    assert trained["final_policy_version"] == 2
    assert set(trained["heldout"]) == {"before_rl", "after_rl"}
    short = ("rl.steps=1", "eval=null", "--out", tmp_path / "short")
    assert summary_of(ale("run", file, "--only", "train", "--from", dump, *short))["heldout"] == {}
    with RunStore.open(tmp_path / "short") as store:
        assert [step for step, _ in store.metrics("rl")["updates"]] == [1], "rl.steps counts for a dump too"
    with RunStore.open(tmp_path / "trained") as store:
        metrics = store.metrics("rl")
    (_, first), (_, second) = metrics["ratio"]
    assert first == pytest.approx(1, abs=1e-5)
    assert abs(second - 1) > 1e-4, "one policy sampled both steps; the second is trained on with another"
    assert metrics["staleness"] == [(1, 0), (2, 1)]


def test_a_step_whose_replays_are_all_lost_costs_the_expert_and_not_the_run(run_file: RunFile, tmp_path: Path) -> None:
    file = run_file(
        TINY.replace("families: [write, count]", "families: [write, count], train_tasks: 2, wrong_turn_rate: 0")
    )
    algorithm = "algorithm={{use: ipa, group_size: 2, start: rollback, window: 2, experts: {}}}"
    made = ale("run", file, algorithm.format("{demonstrate: 1}"), "--out", tmp_path / "made", "eval.episodes=1")
    summary_of(made)
    with RunStore.open(tmp_path / "made") as store, RunStore.create(tmp_path / "other") as other:
        demonstrations = store.trajectories("split = 'train' AND stage <> 'rl'")
        for t in {t.task_id: t for t in demonstrations}.values():
            lines = tuple(replace(s, messages=tuple(map(otherwise, s.messages))) for s in t.sequences)
            other.add_trajectory(replace(t, sequences=lines))
    algorithm = algorithm.format(f"{{demonstrations: false, data: [{tmp_path / 'other'}]}}")
    done = ale("run", file, algorithm, "--out", tmp_path / "run", "rl.steps=3", "eval.episodes=1")
    summary = summary_of(done)
    with RunStore.open(tmp_path / "run") as store:
        metrics, events = store.metrics("rl"), store.events()
        came = [t.step for t in store.trajectories("stage = 'rl' AND rejected IS NULL")]
    assert summary["status"] == "completed"
    assert (1, 1.0) in metrics["rejected/replay_failure"]
    assert min(step for step, _ in metrics["success"]) > 1, "nothing came back in the first step"
    assert came
    given_up = {data["task"] for _, kind, data in events if kind in ("expert_cut", "expert_dropped")}
    assert len(given_up) == 2
    assert "2 of the 2 tasks of step 1 have one" in done.stderr


def test_a_run_without_an_expert_for_its_tasks_says_so(run_file: RunFile, tmp_path: Path) -> None:
    """Recordings of another instance set, say: every rollout starts at the beginning."""
    file = run_file(TINY)
    other = ("tasks.families=[find]", "algorithm.experts={demonstrate: 1}", "rl.steps=1", "eval.episodes=1")
    summary_of(ale("run", file, "--out", tmp_path / "made", *other))
    experts = f"algorithm.experts={{demonstrations: false, data: [{tmp_path / 'made'}]}}"
    done = ale("run", file, "--out", tmp_path / "run", experts, "rl.steps=1", "eval.episodes=1")
    summary_of(done)
    with RunStore.open(tmp_path / "run") as store:
        assert store.metrics("rl")["experts"] == [(1, 0.0)]
        assert all(t.start_chunk == 0 for t in store.trajectories("stage = 'rl'"))
    assert "experts: 0 of the 2 tasks of step 1 have one" in done.stderr


def otherwise(message: Message) -> Message:
    """What no tool will answer again."""
    return replace(message, content="Another world.") if message.role == "tool" else message


def test_a_trained_folder_is_a_starting_point(finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    path = finished / "model" / "final"
    summary = summary_of(ale("run", file, f"model.path={path}", "model.scratch=null", "sft=null", "eval.every=0"))
    assert set(summary["heldout"]) == {"before_rl", "after_rl"}


def test_an_asynchronous_run_keeps_its_bound_and_trains_on_every_group_once(run_file: RunFile, tmp_path: Path) -> None:
    asynchronous = ("rl.async_ratio=2", "rl.ahead=2", "rl.steps=6", "eval.every=2", "eval.episodes=2")
    summary = summary_of(ale("run", run_file(TINY), "--out", tmp_path / "run", *asynchronous))
    with RunStore.open(tmp_path / "run") as store:
        metrics = store.metrics("rl")
        groups = Counter((t.step, t.group) for t in store.trajectories("stage = 'rl' AND rejected IS NULL"))
        evaluated = [step for step, _ in store.metrics("eval")["success"]]
    assert [step for step, _ in metrics["staleness_max"]] == [1, 2, 3, 4, 5, 6]
    assert max(value for _, value in metrics["staleness_max"]) == 2, "sampling was ahead, as far as it may be"
    assert metrics["rollouts"] == [(step, 4) for step in range(1, 7)]
    assert list(groups.values()) == [2] * 12
    assert evaluated == [-1, 0, 2, 4, 6]
    assert summary["final_policy_version"] == 1 + 6
    assert [value for _, value in metrics["tokens/lost"]] == [0.0] * 6
    assert max(value for _, value in metrics["tokens/open"]) > 0, "what was sampled ahead"
    assert metrics["tokens/open"][-1][1] == 0
    ends = {name: metrics[f"tokens/{name}"][-1][1] for name in ("sampled", "trained", "rejected")}
    assert ends["sampled"] == ends["trained"] + ends["rejected"] > 0
    trainer = sum(value for name in metrics if name.startswith("trainer/") for _, value in metrics[name])
    engine = sum(value for name in metrics if name.startswith("engine_state/") for _, value in metrics[name])
    assert trainer == pytest.approx(engine), "both filled the same time with their states"


def test_a_loss_that_bounds_nothing_is_refused_in_an_asynchronous_run(run_file: RunFile) -> None:
    done = ale("run", run_file(TINY), "rl.async_ratio=1", "algorithm={use: pg, variant: rloo}")
    assert done.returncode == 2
    assert "rl.async_ratio: the variant 'rloo' neither clips nor truncates" in done.stderr


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (("rl.ahead=1",), "ahead (1) must not be above async_ratio (0)"),
        (("rl.patience_s=5",), "patience_s does nothing with async_ratio 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    run_file: RunFile, settings: tuple[str, ...], sentence: str
) -> None:
    done = ale("run", run_file(TINY), *settings)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_rollouts_of_a_task_with_an_expert_start_on_its_path_which_is_imitated(
    run_file: RunFile, tmp_path: Path
) -> None:
    algorithm = "algorithm={use: ipa, group_size: 2, start: rollback, il_when: always}"
    experts = "algorithm.experts={demonstrations: false, demonstrate: 3}"
    ended = ale("run", run_file(TINY), "--out", tmp_path / "run", algorithm, experts, "rl.steps=1", "eval.episodes=1")
    summary_of(ended)
    with RunStore.open(tmp_path / "run") as store:
        metrics = store.metrics("rl")
        experts_of = {t.task_id: t for t in store.trajectories("stage = 'prepare'") if t.passed}
        rollouts = list(store.trajectories("stage = 'rl' AND rejected IS NULL"))
    assert experts_of
    assert metrics["experts"] == [(1, len(experts_of))]
    for t in rollouts:
        assert t.start_chunk == (len(experts_of[t.task_id].chunks) - 1 if t.task_id in experts_of else 0)
        assert [c.sampled for c in t.chunks[: t.start_chunk + 1]] == [False] * t.start_chunk + [True]
        assert t.group.endswith(f".k{t.start_chunk + 1}") is (t.task_id in experts_of)
    imitated = {t.group: experts_of[t.task_id].chunks for t in rollouts if t.task_id in experts_of}
    assert metrics["il_tokens"] == [(1, sum(len(c) for chunks in imitated.values() for c in chunks))]


def test_the_same_seed_gives_the_same_run(run_file: RunFile, tmp_path: Path) -> None:
    file = run_file(TINY)
    metrics = []
    for name in ("a", "b"):
        summary_of(ale("run", file, "--out", tmp_path / name, "rollout.concurrency=1", "eval.every=0"))
        with RunStore.open(tmp_path / name) as store:
            metrics.append([t.sequences for t in store.trajectories("stage = 'rl' AND step = 1")])
    assert metrics[0] == metrics[1]


def test_a_scripted_engine_needs_no_model(run_file: RunFile) -> None:
    summary = summary_of(ale("run", run_file(SCRIPTED), "--only", "rollout"))
    assert summary["rollouts"] == 8
    assert summary["failures"] == {}


def test_nonsense_neither_hangs_nor_crashes(run_file: RunFile) -> None:
    file = run_file(SCRIPTED.replace("answers: [{finish}]", "random: true"))
    assert summary_of(ale("run", file, "--only", "rollout"))["rollouts"] == 8


def test_without_isolation_one_line_says_so(run_file: RunFile) -> None:
    done = ale("run", run_file(SCRIPTED), "--only", "rollout", "sandbox.isolation=none", "needs.network=full")
    assert summary_of(done)["rollouts"] == 8
    assert sum("isolate NOTHING" in line for line in done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "nowhere.yaml"], "There is no run file nowhere.yaml."),
        (["run", "FILE", "rl.stepz=1"], "rl.stepz: there is no such key. Did you mean 'steps'?"),
        (["run", "FILE", "algorithm.gama=1"], "algorithm.gama: there is no such key. Did you mean 'gamma'?"),
        (["run", "FILE", "sandbox=lokal"], "there is no sandbox plugin 'lokal'. Did you mean 'local'?"),
        (["run", "FILE", "rl.steps=many"], "rl.steps: input should be a valid integer"),
        (["run", "FILE", "--only", "train"], "'--only train' trains on a dump"),
        (["run", "FILE", "--only", "half"], "--only takes 'rollout' or 'train'"),
        (["run", "FILE", "sft=null"], "model.scratch: the tokenizer is trained on demonstrations"),
        (["eval", "."], "is not a run folder"),
        (["report", "."], "is not a run folder"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(
    run_file: RunFile, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    file = run_file(TINY)
    done = ale(*[str(file) if a == "FILE" else a for a in arguments], cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists(), "nothing was begun"


def test_the_database_is_readable_with_any_sqlite(finished: Path) -> None:
    with sqlite3.connect(finished / "run.db") as db:
        (n,) = db.execute("SELECT COUNT(*) FROM trajectories WHERE stage = 'eval'").fetchone()
    assert n == 16


def test_a_run_whose_prompts_leave_no_room_is_refused_with_both_numbers_before_a_rollout(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(SCRIPTED.format(runs=tmp_path / "runs", finish=json.dumps(FINISH)))
    short = ("rollout.max_context=20", "rollout.max_tokens=8", "--only", "rollout")
    done = ale("run", file, *short, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "have a first prompt that leaves no room for a reply (context: 20 tokens; " in done.stderr
    with RunStore.open(tmp_path / "run") as store:
        assert store.count() == 0
