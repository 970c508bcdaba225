"""A run that needs what a plugin lacks is refused before anything starts, with the name of a plugin that has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from strangers import Install

from ale.capabilities import check_capabilities, check_started
from ale.config import load_run_config
from ale.errors import ConfigError, PluginError
from ale.pipeline.run import check
from ale.plugins import load_driver_class
from ale.run_config import RunConfig
from ale.specs.driver import DriverContext, PluginConfig

BASE = """
model: {scratch: {hidden_size: 32}}
tasks: bash
sft: {steps: 1}
rl: {steps: 1}
"""

PROVIDER = """
from ale.specs.sandbox import SandboxProvider
from ale.specs.driver import PluginConfig
from pydantic import Field
class Forking(SandboxProvider):
    api_version = ">=1.1,<1.3"
    capabilities = frozenset({"far.migrate", "network_none"})
    class Config(PluginConfig):
        plain: bool = Field(False, description="Give forks up.")
    @classmethod
    def provides(cls, config): return cls.capabilities - ({"far.migrate"} if config.plain else set())
    async def start_sandbox(self, spec): ...
    async def list(self): return []
    async def remove(self, sandbox_id): ...
"""
FORKING = {
    "api_version": ">=1.1,<1.3",
    "plugins": [{"kind": "sandbox", "name": "forking", "capabilities": ["far.migrate", "network_none"]}],
}

NEEDY = """
from ale.specs.scaffold import Scaffold
class Needy(Scaffold):
    api_version = ">=1.1,<1.3"
    @classmethod
    def needs(cls, config): return {"sandbox": ["far.migrate"]}
    async def run(self, task, sandbox, session): return "finish"
"""

FORGETFUL = """
from ale_trainer_torch import TorchTrainer
class Forgetful(TorchTrainer):
    capabilities = TorchTrainer.capabilities - {"reference"}
"""


def run_with(tmp_path: Path, *overrides: str) -> RunConfig:
    file = tmp_path / "run.yaml"
    file.write_text(BASE)
    return load_run_config(file, overrides).run


def refusals(run: RunConfig, *, train: bool = True) -> list[str]:
    try:
        check_capabilities(run, train=train)
    except PluginError as error:
        return str(error).splitlines()
    return []


def test_limits_are_needed_where_the_file_asks_for_them(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "tasks: bash\nsandbox: {use: local, isolation: none}\nneeds: {network: full}\n"
        "engine: {use: scripted, answers: [x]}\ntrainer: null\n"
    )
    run = load_run_config(file).run
    check_capabilities(run, train=False)
    assert not run.needs.limits_given
    assert run.needs.resources.memory_mib == 512
    asked = load_run_config(file, ["needs.resources.pids=7"]).run
    assert (asked.needs.resources.pids, asked.needs.resources.memory_mib) == (7, 512), "beside the defaults"
    with pytest.raises(PluginError, match=r"sandbox: needs\.resources needs a sandbox with 'limits'"):
        check_capabilities(asked, train=False)


def test_states_of_experts_take_snapshots_and_an_agent_outside(tmp_path: Path) -> None:
    snapshot = "rollout.start_states=snapshot"
    (alone,) = refusals(run_with(tmp_path, snapshot))
    assert alone.startswith("rollout.start_states: without rl.experts no rollout starts behind an expert's chunks")
    assert refusals(run_with(tmp_path, snapshot, "rl.experts={}")) == []
    plain = run_with(tmp_path, snapshot, "sandbox={use: local, isolation: none}", "needs.network=full")
    assert any("rollout.start_states=snapshot needs a sandbox with 'snapshot'" in line for line in refusals(plain))
    driver = load_driver_class("sandbox", "local")(PluginConfig(), DriverContext())
    driver.capabilities = driver.capabilities - {"snapshot"}  # type: ignore[misc]
    with pytest.raises(PluginError, match="not on this machine"):
        check_started(run_with(tmp_path, snapshot), "sandbox", "sandbox", driver)
    inside = run_with(tmp_path, snapshot, "scaffold={use: sweagent}", "needs.network=endpoint-only")
    line = next(line for line in refusals(inside) if "start_states" in line)
    assert line.startswith("rollout.start_states: the scaffold plugin 'sweagent' runs its agent inside the sandbox")


def test_the_default_plugins_do_what_a_whole_run_needs(tmp_path: Path) -> None:
    assert refusals(run_with(tmp_path)) == []


def test_what_a_plugin_needs_of_another_is_refused_and_a_plugin_that_has_it_is_named(
    tmp_path: Path, install: Install
) -> None:
    install("far-needy", NEEDY, kind="scaffold", name="needy", target="far_needy:Needy")
    lacking = "sandbox: the scaffold plugin 'needy' needs a sandbox with 'far.migrate', which 'local' cannot; "
    assert refusals(run_with(tmp_path, "scaffold=needy")) == [lacking + "no installed sandbox plugin can."]
    install("far-forking", PROVIDER, kind="sandbox", name="forking", target="far_forking:Forking", manifest=FORKING)
    assert refusals(run_with(tmp_path, "scaffold=needy")) == [lacking + "use 'forking'."]
    assert refusals(run_with(tmp_path, "scaffold=needy", "sandbox=forking")) == []
    (with_settings,) = refusals(run_with(tmp_path, "scaffold=needy", "sandbox={use: forking, plain: true}"))
    assert with_settings.endswith("which 'forking' with these settings cannot; change its settings.")


@pytest.mark.parametrize("algorithm", ["ipa", "pg"])
def test_a_pull_to_a_reference_needs_a_trainer_that_keeps_one(tmp_path: Path, install: Install, algorithm: str) -> None:
    install("far-forgetful", FORGETFUL, kind="trainer", name="forgetful", target="far_forgetful:Forgetful")
    chosen = (f"algorithm={algorithm}", "trainer=forgetful")
    assert refusals(run_with(tmp_path, *chosen)) == []
    (refused,) = refusals(run_with(tmp_path, *chosen, "algorithm.kl_coef=0.1"))
    assert refused.startswith(
        f"trainer: the algorithm plugin '{algorithm}' needs a trainer with 'reference' (keeps a frozen reference policy), "
        "which 'forgetful' cannot; "
    )
    assert refusals(run_with(tmp_path, f"algorithm={algorithm}", "algorithm.kl_coef=0.1")) == []


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (["needs.network=allow", "needs.allow=['pypi.org:443']"], []),
        (
            ["needs.network=allow", "needs.allow=['pypi.org:443']", "sandbox.isolation=none"],
            ["sandbox: needs.network=allow needs a sandbox with 'egress_policy'"],
        ),
        (["needs.network=full"], ["sandbox: needs.network=full needs a sandbox with 'network_full'"]),
        (["sandbox.isolation=none"], ["sandbox: needs.network=none needs a sandbox with 'network_none'"]),
        (["sandbox.isolation=none", "needs.network=full"], []),
        (["needs.capabilities={sandbox: [limits]}"], []),
        (["needs.capabilities={engine: [sleep]}"], ["engine: needs.capabilities.engine needs an engine with 'sleep'"]),
        (
            ["engine={use: scripted, answers: [x]}"],
            [
                "engine: the trainer plugin 'torch', whose weights stay in memory, needs an engine with "
                "'weight_update_in_place' (takes weights from memory while it runs), which 'scripted' cannot; use 'torch'.",
                "engine: rl needs an engine with 'real_tokens'",
            ],
        ),
    ],
)
def test_what_the_run_needs_of_its_plugins(tmp_path: Path, overrides: list[str], refused: list[str]) -> None:
    found = refusals(run_with(tmp_path, *overrides))
    assert len(found) == len(refused)
    assert all(line.startswith(start) for line, start in zip(found, refused, strict=True))


def test_without_training_the_engine_need_take_no_weights(tmp_path: Path) -> None:
    assert refusals(run_with(tmp_path, "engine={use: scripted, answers: [x]}"), train=False) == []


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("needs.network=allow", "'network' is allow, and 'allow' names no host"),
        ("needs.allow=['pypi.org:443']", "'allow' names hosts, and 'network' is none"),
        ("needs={network: allow, allow: ['pypi.org']}", "'pypi.org' is no host and port; write pypi.org:443"),
    ],
)
def test_what_may_be_reached_is_said_whole_or_refused(tmp_path: Path, override: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run_with(tmp_path, override)


def test_what_the_machine_took_from_a_started_driver_is_refused_too(tmp_path: Path) -> None:
    run = run_with(tmp_path, "needs.capabilities={sandbox: [limits]}")
    driver = load_driver_class("sandbox", "local")(PluginConfig(), DriverContext())
    check_started(run, "sandbox", "sandbox", driver)
    driver.capabilities = driver.capabilities - {"limits"}  # type: ignore[misc]
    with pytest.raises(
        PluginError, match=r"sandbox: needs\.capabilities\.sandbox needs a sandbox with 'limits' .* not on this machine"
    ):
        check_started(run, "sandbox", "sandbox", driver)


def test_the_command_line_refuses_before_a_run_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"run_dir: {tmp_path / 'runs'}\n{BASE}")
    ale = Path(sys.executable).with_name("ale")
    for command in (["run"], ["config", "validate"]):
        done = subprocess.run(
            [ale, *command, tmp_path / "run.yaml", "needs.network=full"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert done.stderr.startswith("error: sandbox: needs.network=full needs a sandbox with 'network_full'")
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_word_that_no_kind_knows_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no capability 'snapsht' of kind sandbox"):
        run_with(tmp_path, "needs.capabilities={sandbox: [snapsht]}")


def test_experts_are_for_an_algorithm_that_starts_from_them(tmp_path: Path) -> None:
    with pytest.raises(
        PluginError, match=r"rl\.experts: 'pg' with these settings starts every rollout at the beginning"
    ):
        check_capabilities(run_with(tmp_path, "algorithm=pg", "rl.experts={demonstrate: 2}"), train=True)


def test_an_expert_that_comes_from_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no experts come from anywhere"):
        run_with(tmp_path, "rl.experts={demonstrations: false}")
    with pytest.raises(ConfigError, match="is no run folder"):
        run_with(tmp_path, f"rl.experts={{data: [{tmp_path}]}}")
    with pytest.raises(ConfigError, match="the run has no demonstrations"):
        check(run_with(tmp_path, "rl.experts={}", "sft=null", "model.scratch=null", "model.path=/m"), "all", None)
