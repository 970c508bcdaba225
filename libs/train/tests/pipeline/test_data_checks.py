"""What is found out about data before a run: numbers of tasks, prompts and rows that are too long, columns, files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import ale_train
from ale.config.yaml_text import dump_yaml
from ale.errors import AleError, ConfigError
from ale.specs.tasks import TaskSource
from ale.store.run_store import RunStore
from ale.task import TRAIN, Task
from ale_testing.tiny_model import write_tiny_model
from ale_train.config.load import load_run_config
from ale_train.pipeline.data_checks import check_data
from ale_train.pipeline.preflight import plan_run
from ale_train.workbench.prompt_lengths import survey_split

needs_math = pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify is not installed")
needs_env = pytest.mark.skipif(find_spec("ale_env_loop") is None, reason="ale-plugin-env-loop is not installed")
SCRIPTED = {"use": "scripted", "answers": ["42"]}
SHORT, LONG = "What is 6 times 7?", "once upon a time " * 100 + "What is 6 times 7?"


class Folder:
    """A folder with a model, data and a run file, which can be validated and run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: dict[str, Any] = {
            "model": {"path": str(path / "model")},
            "tasks": {
                "use": "jsonl",
                "files": {"train": str(path / "train.jsonl"), "heldout": str(path / "held.jsonl")},
            },
            "scaffold": "chat",
            "sandbox": "none",
            "reward": "exact",
            "engine": "torch",
            "trainer": "torch",
            "algorithm": {"use": "pg", "group_size": 2},
            "rollout": {"max_tokens": 8, "max_context": 200},
            "rl": {"steps": 2, "prompts_per_step": 2},
            "eval": {"episodes": 2},
        }
        self.rows("train", SHORT, SHORT, LONG)
        self.rows("held", SHORT)

    def rows(self, name: str, *questions: str, **columns: Any) -> None:
        """Write the rows of a split."""
        rows = [{"prompt": text, **(columns or {"answer": "42"})} for text in questions]
        (self.path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    async def check(self, *overrides: str) -> list[str]:
        """Validate the run file."""
        file = self.path / "run.yaml"
        file.write_text(dump_yaml(self.config))
        return await check_data(plan_run(load_run_config(file, overrides)))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose context has 512 tokens."""
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
    return folder


@pytest.fixture
def folder(tmp_path: Path, model: Path) -> Folder:
    """The folder of a run whose third task for training is too long."""
    made = Folder(tmp_path)
    made.config["model"]["path"] = str(model)
    return made


async def test_tasks_are_counted_by_split_and_those_without_room_are_named(folder: Folder) -> None:
    counts, overlong = await folder.check()
    assert counts == "tasks: 3 train, 1 held out"
    assert overlong.startswith(
        "tasks.overlong: 1 of 3 tasks looked at in the split 'train' have a first prompt that leaves no room for a "
        "reply (context: 200 tokens; train-3: "
    )
    assert overlong.endswith("they are dropped")
    assert (await folder.check("tasks.overlong=truncate"))[1].endswith("their beginning is cut off")
    assert await folder.check("rollout.max_context=60000", "tasks.limit=2", "tasks.shuffle=false") == [
        "tasks: 2 train, 1 held out"
    ]


async def test_the_models_own_context_counts_too(folder: Folder) -> None:
    assert "context: 512 tokens" in (await folder.check("rollout.max_context=60000"))[1]


async def test_fail_refuses_them_and_so_does_a_split_of_nothing_else(folder: Folder) -> None:
    with pytest.raises(ConfigError, match=r"tasks\.overlong: 1 of 3 tasks .* Raise rollout\.max_context"):
        await folder.check("tasks.overlong=fail")
    folder.rows("held", LONG)
    with pytest.raises(ConfigError, match=r"tasks\.overlong: 1 of 1 tasks looked at in the split 'heldout'"):
        await folder.check()


async def test_the_prompt_is_the_scaffolds_with_its_system_message(folder: Folder) -> None:
    folder.config["scaffold"] = {"use": "chat", "system": "Be brief. " * 60}
    with pytest.raises(ConfigError, match="3 of 3 tasks"):
        await folder.check()


async def test_tasks_of_a_mixture_and_of_an_evaluation_set_are_counted(folder: Folder) -> None:
    own = folder.config["tasks"]
    folder.config["tasks"] = {"mix": [own, {**own, "tags": ["again"]}], "overlong": "truncate"}
    other = {"use": "jsonl", "files": {"test": own["files"]["heldout"]}}
    folder.config["eval"] = {"episodes": 2, "sets": {"other": {"tasks": other, "split": "test"}, "own": {}}}
    counts, _, of_set = await folder.check()
    assert counts == "tasks: 6 train, 2 held out", (
        "each once, although a mixture begins again with those that end first"
    )
    assert of_set == "eval.sets.other: tasks: 1 test"


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        ("exact", r"reward\.answer: the task .* has nothing in the column 'answer'"),
        pytest.param(
            {"use": "math", "answer": "solution"},
            r"reward\.answer: .* nothing in the column 'solution'",
            marks=needs_math,
        ),
        ("code", r"reward\.cases: .* nothing in the column 'tests'"),
        ("right", r"reward: the task .*: right of .* takes 'answer', which nothing provides"),
        ("batched", r"reward: the task .*: batched of .* takes 'answer', which nothing provides"),
    ],
)
async def test_a_column_that_a_reward_reads_and_no_task_has_is_refused(
    folder: Folder, reward: Any, sentence: str
) -> None:
    folder.rows("train", SHORT, result="42")
    source = "def right(completion, answer): return 1.0\ndef batched(prompts, completions, answer): return [1.0]\n"
    (folder.path / "mine.py").write_text(source)
    if reward in ("right", "batched"):
        reward = {"use": "python", "path": str(folder.path / "mine.py"), "function": reward}
    folder.config["reward"], folder.config["sandbox"] = reward, "local"
    with pytest.raises(ConfigError, match=sentence):
        await folder.check()


async def test_what_some_tasks_have_and_what_an_episode_brings_is_no_objection(folder: Folder) -> None:
    rows = [{"prompt": SHORT, "answer": "42"}, {"prompt": SHORT}]
    (folder.path / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = "def all(prompts, completions, prompt_ids, completion_ids, trainer_state=None, **rest): return [1.0]\n"
    (folder.path / "mine.py").write_text(
        source + "async def one(completion, sandbox, state, reply, turn=1): return 1.0\n"
    )
    functions = [{"path": str(folder.path / "mine.py"), "function": name} for name in ("all", "one")]
    assert (await folder.check())[0] == "tasks: 2 train, 1 held out"
    folder.config["reward"], folder.config["sandbox"] = {"use": "python", "functions": functions}, "local"
    assert (await folder.check())[0] == "tasks: 2 train, 1 held out"


async def test_nothing_is_downloaded(folder: Folder) -> None:
    folder.config["tasks"] = {"use": "jsonl", "path": "openai/gsm8k"}
    assert await folder.check() == ["tasks: not counted, since they are read from the network"]


async def test_rows_of_demonstrations_are_read_and_measured(folder: Folder) -> None:
    rows = [{"prompt": SHORT, "completion": "42"}, {"prompt": SHORT, "completion": "42 " * 600}]
    (folder.path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    folder.config |= {"rl": None, "eval": None}
    folder.config["sft"] = {"demonstrations": {"data": [str(folder.path / "rows.jsonl")]}}
    read, overlong = await folder.check()
    assert read == "sft.demonstrations.data: 2 demonstrations read"
    assert "1 of 2 demonstrations of sft.demonstrations.data have a sequence of more than 512 tokens" in overlong
    with pytest.raises(ConfigError, match=r"sft\.overlong: 1 of 2 .* Set sft\.overlong to"):
        await folder.check("sft.overlong=fail")


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        (
            {"sft": {"demonstrations": {"data": ["gone.jsonl"]}}},
            r"sft\.demonstrations\.data: there is no .* gone\.jsonl",
        ),
        ({"sft": {"stages": [{"data": ["gone"]}]}}, r"sft\.stages\.0\.data: there is no .* gone"),
        ({"cpt": {"stages": [{"data": ["gone.txt"], "steps": 1}]}}, r"cpt\.stages\.0\.data: .* gone\.txt"),
        ({"rl": {"instances": "gone.json"}}, r"rl\.instances: gone\.json cannot be read"),
        ({"tasks": {"use": "jsonl", "path": "gone.jsonl"}}, r"There is no file or folder gone\.jsonl"),
        pytest.param(
            {"tasks": {"use": "env", "env": "mine:World", "rows": "gone.jsonl"}},
            r"tasks\.rows: there is no file gone",
            marks=needs_env,
        ),
    ],
)
async def test_files_that_are_not_there_are_refused(folder: Folder, section: dict[str, Any], sentence: str) -> None:
    folder.config |= section
    with pytest.raises(AleError, match=sentence):
        await folder.check()


@needs_env
@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        ("def step(self, action): return 'x', 1.0, True, {}", "has no method 'reset'"),
        ("def reset(self, seed): return 'x'", "has no method 'step'"),
    ],
)
async def test_an_environment_without_a_method_is_refused(folder: Folder, world: str, sentence: str) -> None:
    (folder.path / "world.py").write_text(f"class World:\n    {world}\n")
    env = {"use": "env", "env": f"{folder.path / 'world.py'}:World"}
    folder.config |= {"tasks": env, "scaffold": "env", "reward": "steps"}
    with pytest.raises(ConfigError, match=sentence):
        await folder.check()


def test_a_run_works_on_the_tasks_that_have_room(folder: Folder) -> None:
    out = folder.path / "out"
    folder.config["engine"] = SCRIPTED
    ale_train.run(folder.config, only="rollout", out=out, quiet=True)
    with RunStore.open(out) as store:
        assert {t.task_id for t in store.trajectories("stage = 'rl'")} == {"train-1", "train-2"}
        ((data,),) = store.rows("SELECT data FROM events WHERE kind = 'tasks_counted'")
    assert list(json.loads(data)["without_room"]) == ["train-3"]
    with pytest.raises(ConfigError, match=r"tasks\.overlong: 1 of 3"):
        ale_train.run(folder.config, "tasks.overlong=fail", only="rollout", out=folder.path / "fail", quiet=True)


def test_a_run_that_ends_by_a_mistake_in_its_configuration_says_how_it_goes_on(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder.path / "out"
    folder.config["engine"] = SCRIPTED
    with pytest.raises(ConfigError, match=r"tasks\.overlong"):
        ale_train.run(folder.config, "tasks.overlong=fail", only="rollout", out=out)
    assert f"To go on with this run: ale run --resume {out}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="There is no file or folder"):
        ale_train.run(folder.config, "tasks.files.train=gone.jsonl", out=folder.path / "never")
    assert "To go on" not in capsys.readouterr().err, "it had not begun"
    with RunStore.create(out), pytest.raises(ConfigError, match="Another process writes to"):
        ale_train.run(out, resume=True)
    assert "To go on" not in capsys.readouterr().err, "it goes on elsewhere"


class EndsEarly(TaskSource):
    """A source that can make two tasks, and does not know it."""

    def tasks(self, split: str) -> Iterator[Task]:
        """Yield two tasks, then fail."""
        yield from (Task(id=f"{split}-{i}", instruction=SHORT) for i in range(2))
        raise ConfigError("There are no further tasks.")


@pytest.mark.parametrize("examine", [1, 5])
def test_tasks_that_a_run_may_never_take_need_not_be_there(examine: int) -> None:
    source = EndsEarly()
    survey = survey_split(source, TRAIN, iter(source.tasks(TRAIN)), None, examine)
    assert (survey.count, survey.complete) == (2, False)
