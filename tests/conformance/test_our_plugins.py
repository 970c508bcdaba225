"""Every plugin of ours keeps its contract, in each of its usual settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from kit import assert_keeps_contract, run_kit_here
from support.fake_packages import write_package
from test_wrong_scaffolds import SCAFFOLD

import ale_testing
from ale.registry.installed import list_plugins

HERE = Path(__file__).parent
SUITES = sorted(Path(ale_testing.__file__).parent.glob("test_*.py"))
QUESTIONS = str(HERE / "questions.jsonl")
COUNTING = yaml.safe_dump({"env": f"{HERE / 'counting.py'}:Counting", "action": "<act>(.*?)</act>"})
JUDGE = "{{url: 'http://127.0.0.1:{port}/v1', model: judge, rubric: It is short., attempts: 1}}"
SETTINGS = {
    "sandbox:local": ["", "isolation: none"],
    "engine:scripted": ["answers: [hello]", "{random: true, random_tokens: 8}"],
    "engine:torch": ["threads: 1"],
    "engine:mixed": ["parts: [{use: torch, threads: 1}, {use: torch, threads: 1, max_batch: 8}]"],
    "trainer:torch": ["{threads: 1, value_head: true}"],
    "trainer:megatron": ["{threads: 1, ranks: 2, tensor_parallel: 2}"],
    "algorithm:ipa": [
        "",
        "{level: token, experts: {}}",
        "{level: trajectory, return_signal: group_centered, experts: {demonstrate: 2}}",
    ],
    "algorithm:pg": ["", "{variant: topr_token_mask}", "{variant: gspo}"],
    "hooks:mlflow": ["mode: offline"],
    "hooks:prometheus": ["port: 0"],
    "hooks:wandb": ["mode: offline"],
    "scaffold:iflow": [""],
    "tasks:jsonl": [
        yaml.safe_dump(
            {"path": QUESTIONS, "columns": {"answer": "answer"}, "shuffle": False, "shares": {"heldout": 0.2}}
        ),
        yaml.safe_dump({"path": QUESTIONS, "columns": {"tags": "level", "completion": "answer"}}),
    ],
    "scaffold:cli": [yaml.safe_dump({"command": [sys.executable, str(HERE / "small_agent.py")]})],
    "scaffold:chat": [
        "",
        "{reply: Go on., stop_when: [done]}",
        yaml.safe_dump({"tools": [f"{HERE / 'functions.py'}:run"]}),
    ],
    "tasks:env": [COUNTING],
    "reward:python": [yaml.safe_dump({"function": f"{HERE / 'functions.py'}:{name}"}) for name in ("short", "by_turn")],
    "reward:judge": [JUDGE],
}
TASKS = {
    "scaffold:env": yaml.safe_dump({"use": "env", **yaml.safe_load(COUNTING)}, default_flow_style=True),
    "reward:code": yaml.safe_dump({"use": "jsonl", "path": str(HERE / "programs.jsonl")}, default_flow_style=True),
}
"""Those that not every task can be given to."""
WITHOUT_TOKENS = {"engine:upstream"}
"""Answers with messages of another server's model: the suites of engines ask for tokens (libs/endpoint tests it)."""
ELSEWHERE = {"sandbox:docker", "sandbox:podman", "sandbox:rock", "engine:vllm", "engine:sglang", "cluster:ray"}
"""Containers, servers, services and clusters have files of their own, which run side by side."""
OURS = sorted({f"{i.kind}:{i.name}" for i in list_plugins() if i.package.startswith("ale-")} - WITHOUT_TOKENS)
CASES = [
    pytest.param(
        plugin,
        settings,
        id=f"{plugin}-{settings.splitlines()[0] if settings else ''}".rstrip("-"),
        marks=pytest.mark.bwrap,
    )
    for plugin in OURS
    if plugin not in ELSEWHERE
    for settings in SETTINGS.get(plugin, [""])
]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("plugin", "settings"), CASES)
def test_it_keeps_its_contract(plugin: str, settings: str, tmp_path: Path) -> None:
    with judge() if settings == JUDGE else nullcontext(0) as port:
        own = settings.format(port=port) if port else settings
        assert_keeps_contract(plugin, own, tmp_path, TASKS.get(plugin))


@contextmanager
def judge() -> Iterator[int]:
    """A server of chat completions whose every answer is a score; its port."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            message = {"role": "assistant", "content": "It is short.\nScore: 7"}
            body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_every_kind_has_a_plugin_that_is_checked() -> None:
    from ale.specs.kinds import ALL_KINDS

    assert {plugin.partition(":")[0] for plugin in OURS} == set(ALL_KINDS)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--ale-plugin", "sandbox"], "--ale-plugin takes KIND:NAME, such as sandbox:docker, not 'sandbox'."),
        (["--ale-plugin", "sandbox:locl"], "sandbox: there is no sandbox plugin 'locl'. Did you mean 'local'?"),
        (["--ale-plugin", "sandbx:local"], "There is no kind of plugin 'sandbx'. Did you mean 'sandbox'?"),
        (["--ale-plugin", "sandbox:local", "--ale-config", "gone.yaml"], "--ale-config gone.yaml cannot be read"),
        (["--ale-plugin", "engine:scripted"], "engine: give exactly one of answers, function, recording and random"),
        (["--ale-plugin", ""], "Which plugin is to be tested? Add --ale-plugin KIND:NAME"),
        (["--ale-plugin", "", "--ale-tasks", "bash"], "Which plugin is to be tested? Add --ale-plugin KIND:NAME"),
        (["--ale-plugin", "scaffold:iflow", "--ale-tasks", "bush"], "there is no tasks plugin 'bush'. Did you mean"),
        (["--ale-plugin", "scaffold:iflow", "--ale-tasks", "{mix: [bash]}"], "--ale-tasks takes the name of a task"),
        (["--ale-plugin", "scaffold:iflow", "--ale-tasks", "gone.yaml"], "--ale-tasks gone.yaml cannot be read"),
        (
            ["--ale-plugin", "scaffold:iflow", "--ale-tasks", "{use: bash, word: 3}"],
            "--ale-tasks.word: there is no such key",
        ),
        (
            ["--ale-plugin", "scaffold:iflow", "--ale-plugin", "scaffld:chat"],
            "There is no kind of plugin 'scaffld'. Did you mean 'scaffold'?",
        ),
    ],
)
def test_a_mistake_in_the_options_is_a_sentence(options: list[str], sentence: str, tmp_path: Path) -> None:
    done = run_kit_here(tmp_path, options[1], *options[2:])
    assert done.returncode == 4
    assert sentence in done.stdout
    assert "Traceback" not in done.stdout


def test_each_plugin_that_is_given_is_tested_on_the_tasks_of_a_source(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"tasks: {{use: env, {COUNTING.strip().replace(chr(10), ', ')}}}")
    settings = {"tasks:env": yaml.safe_load(COUNTING), "scaffold:env": {"max_turns": 3}}
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
    more = ["--ale-plugin", "scaffold:env", "--ale-plugin", "reward:steps", "--ale-plugin", "tasks:env"]
    options = ["--ale-tasks", "run.yaml", "--ale-config", "settings.yaml", "-vv"]
    done = run_kit_here(tmp_path, "tasks:env", *more, *options)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout
    for test in (
        "test_driver.py::test_settings_are_frozen[scaffold:env]",
        "test_driver.py::test_settings_are_frozen[reward:steps]",
        "test_tasks.py::test_a_split_can_be_read_twice[tasks:env]",
        "test_scaffold_episodes.py::test_whole_episodes_end_and_are_recorded[scaffold:env]",
        "test_reward_episodes.py::test_what_the_tasks_demonstrate_is_scored[reward:steps]",
    ):
        assert f"{test} PASSED" in done.stdout
    assert "test_a_split_can_be_read_twice[scaffold:env]" not in done.stdout


def test_of_several_plugins_a_wrong_one_fails_and_the_settings_are_of_each(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("max_turns: 3")
    two = ["--ale-plugin", "scaffold:iflow", "--ale-config", "settings.yaml"]
    done = run_kit_here(tmp_path, "scaffold:chat", *two)
    assert done.returncode == 4
    assert "with several plugins it must hold the settings of each under its name" in done.stdout
    write_package(tmp_path, "far-away", f"{SCAFFOLD}    deterministic_tools = 'look'\n", name="wrong", kind="scaffold")
    done = run_kit_here(tmp_path, "scaffold:wrong", "--ale-plugin", "scaffold:iflow", "-k", "are_names", path=tmp_path)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "test_deterministic_tools_are_names[scaffold:wrong]" in done.stdout


def test_tests_of_several_suites_have_names_of_their_own() -> None:
    """A package imports the suites into one module, where the later of two with one name would hide the other."""
    names = [
        name for file in SUITES for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    ]
    assert len(names) > 150
    assert [name for name, count in Counter(names).items() if count > 1] == []
    marked = [file.name for file in SUITES if re.search(r"^pytestmark\b", file.read_text(), re.MULTILINE)]
    assert marked == [], "marks of a module are not imported with its tests: mark each test"


def test_the_suites_can_be_imported_into_an_authors_own_tests(tmp_path: Path) -> None:
    (tmp_path / "test_contract.py").write_text("from ale_testing.test_tasks import *\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    command += ["--ale-plugin", "tasks:bash", tmp_path]
    done = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "9 passed" in done.stdout
