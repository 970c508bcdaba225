"""A run that needs what a plugin lacks is refused before anything starts, with the name of a plugin that has it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ale_command import ale
from support.fake_packages import Install

from ale.config.capabilities import Requirements
from ale.errors import ConfigError, PluginError
from ale.registry.drivers import load_driver_class
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext, PluginConfig
from ale_local import LocalSandbox
from ale_train.config.load import load_run_config
from ale_train.config.rl import RLConfig
from ale_train.config.run import RunConfig
from ale_train.pipeline.preflight import check_capabilities, plan_run
from ale_train.rl.checks import check_algorithm

BASE = """
model: {scratch: {hidden_size: 32}}
tasks: bash
sft: {steps: 1}
rl: {steps: 1}
"""

PROVIDER = """
from ale.specs.sandbox import SandboxProvider
from ale.specs.driver import Driver, PluginConfig
from pydantic import Field
class Forking(Driver, SandboxProvider):
    api_version = ">=1.0,<1.2"
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
    "api_version": ">=1.0,<1.2",
    "plugins": [{"kind": "sandbox", "name": "forking", "capabilities": ["far.migrate", "network_none"]}],
}

NEEDY = """
from ale.specs.driver import Driver
from ale.specs.scaffold import Scaffold
class Needy(Driver, Scaffold):
    api_version = ">=1.0,<1.2"
    @classmethod
    def needs(cls, config): return {"sandbox": ["far.migrate"]}
    async def run(self, task, sandbox, session): return "finish"
"""

FOLDERS_ONLY = """
from ale_engine_torch import TorchEngine
from ale_trainer_torch import TorchTrainer
class Loads(TorchEngine):
    transports = ("folder",)
class Publishes(TorchTrainer):
    transports = ("acme.bus", "memory")
"""


def run_with(tmp_path: Path, *overrides: str) -> RunConfig:
    file = tmp_path / "run.yaml"
    file.write_text(BASE)
    return load_run_config(file, overrides).run


def plan(run: RunConfig) -> None:
    """Check a whole run."""
    loaded: Any = SimpleNamespace(run=run)
    plan_run(loaded)


def refusals(run: RunConfig, *, train: bool = True) -> list[str]:
    try:
        check_capabilities(run, train=train)
    except PluginError as error:
        return str(error).splitlines()
    return []


NEEDY_TASKS = """
from ale.specs.driver import Driver
from ale.specs.tasks import TaskSource
class Picky(Driver, TaskSource):
    api_version = ">=1.0,<1.2"
    @classmethod
    def needs(cls, config): return {"sandbox": ["far.migrate"]}
    def tasks(self, split): return ()
"""


@pytest.mark.parametrize(
    ("picky", "bash", "rules", "blamed"),
    [
        ("", "", "[{when: picky, use: forking}, local]", []),
        ("", "", "[{when: bash, use: local}, forking]", []),
        ("", "", "[{when: '!picky', use: local}, forking]", []),
        ("", "", "[{when: '!bash', use: forking}, local]", []),
        ("", "tags: [heavy]", "[{when: heavy, use: local}, forking]", []),
        ("tags: [heavy]", "tags: [heavy]", "[{when: heavy, use: local}, forking]", [0]),
        ("", "", "[{when: easy, use: local}, forking]", [0]),
        ("", "", "[{when: [easy, bash], use: local}, forking]", []),
        ("", "", "[{when: [easy, picky], use: forking}, local]", [1]),
        ("", "", "[{when: picky, use: forking}, {when: picky, use: local}, local]", [1]),
        ("", "", "[forking, local]", [1]),
    ],
)
def test_a_sources_needs_in_a_mix_concern_the_rules_that_its_tasks_can_reach(
    tmp_path: Path, install: Install, picky: str, bash: str, rules: str, blamed: list[int]
) -> None:
    install("far-picky", NEEDY_TASKS, kind="tasks", name="picky", target="far_picky:Picky")
    install("far-forking", PROVIDER, kind="sandbox", name="forking", target="far_forking:Forking", manifest=FORKING)
    mix = f"tasks={{mix: [{{use: picky, {picky}}}, {{use: bash, {bash}}}]}}"
    run = run_with(tmp_path, mix, f"sandbox={{select: {rules}}}", "sft=null")
    lacking = [line for line in refusals(run, train=False) if "the tasks plugin 'picky' needs" in line]
    assert [line.partition(":")[0] for line in lacking] == [f"sandbox.select.{number}" for number in blamed]
    driver = load_driver_class("sandbox", "local")(PluginConfig(), DriverContext())
    for number, rule in enumerate(run.sandbox.rules):
        if rule.use == "local" and number not in blamed:
            Requirements(run).check_started(f"sandbox.select.{number}", "sandbox", driver)


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
    snapshot = "algorithm={use: ipa, experts: {start_states: snapshot}}"
    assert refusals(run_with(tmp_path, snapshot)) == []
    plain = run_with(tmp_path, snapshot, "sandbox={use: local, isolation: none}", "needs.network=full")
    assert any("the algorithm plugin 'ipa' needs a sandbox with 'Snapshots'" in line for line in refusals(plain))
    driver: Any = load_driver_class("sandbox", "local")(PluginConfig(), DriverContext())
    Requirements(run_with(tmp_path, snapshot)).check_started("sandbox", "sandbox", driver)
    driver.sandbox_type = LocalSandbox
    with pytest.raises(PluginError, match="not on this machine"):
        Requirements(run_with(tmp_path, snapshot)).check_started("sandbox", "sandbox", driver)
    inside = run_with(tmp_path, snapshot, "scaffold={use: sweagent}", "needs.network=endpoint-only")
    with pytest.raises(ConfigError, match=r"algorithm\.experts\.start_states: every agent of the run is inside its"):
        check_algorithm(inside, RLConfig(), demonstrations=True)


def test_warm_sandboxes_take_a_provider_whose_sandboxes_can_be_made_as_new(tmp_path: Path) -> None:
    assert refusals(run_with(tmp_path, "pool.warm=1")) == []
    (line,) = refusals(run_with(tmp_path, "pool.warm=1", "sandbox={use: local, isolation: none}", "needs.network=full"))
    assert line.startswith(
        "sandbox: pool.warm=1 needs a sandbox with 'Resets' (can be made as new, and shows that it is), which 'local' "
        "with these settings cannot; change its settings, or use "
    )
    assert "'docker'" in line, "who has it is named"


def test_gpus_take_a_provider_that_hands_them_in(tmp_path: Path) -> None:
    found = refusals(run_with(tmp_path, "needs.resources.gpus=1"))
    assert [line.partition(" (")[0] for line in found] == ["sandbox: needs.resources.gpus needs a sandbox with 'gpu'"]


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
        (
            ["needs.capabilities={engine: [acme.sleep]}"],
            ["engine: needs.capabilities.engine needs an engine with 'acme.sleep'"],
        ),
        (
            ["engine={use: scripted, answers: [x]}"],
            [
                "engine: rl needs an engine with 'real_tokens'",
                "engine: 'scripted' takes new weights by no transport, and the trainer plugin 'torch' publishes them "
                "by 'memory' or 'ipc' or 'nccl' or 'folder' or 'gloo'; use an engine and a trainer that have a "
                "transport in common.",
            ],
        ),
    ],
)
def test_what_the_run_needs_of_its_plugins(tmp_path: Path, overrides: list[str], refused: list[str]) -> None:
    found = refusals(run_with(tmp_path, *overrides))
    assert len(found) == len(refused)
    assert all(line.startswith(start) for line, start in zip(found, refused, strict=True))


def test_trainer_and_engine_must_name_a_transport_in_common(tmp_path: Path, install: Install) -> None:
    install("far-loads", FOLDERS_ONLY, kind="engine", name="loads", target="far_loads:Loads")
    install("far-publishes", FOLDERS_ONLY, kind="trainer", name="publishes", target="far_publishes:Publishes")
    assert refusals(run_with(tmp_path, "engine=loads")) == [], "'folder' is common to both"
    assert refusals(run_with(tmp_path, "trainer=publishes")) == [], "'memory' is"
    (refused,) = refusals(run_with(tmp_path, "engine=loads", "trainer=publishes"))
    assert refused == (
        "engine: 'loads' takes new weights by 'folder', and the trainer plugin 'publishes' publishes them by "
        "'acme.bus' or 'memory'; use an engine and a trainer that have a transport in common."
    )
    assert refusals(run_with(tmp_path, "engine=loads", "trainer=publishes"), train=False) == []
    mixed = "engine={use: mixed, parts: [{use: torch}, {use: loads}]}"
    assert refusals(run_with(tmp_path, mixed, "trainer=publishes")) == [refused.replace("loads", "mixed")]
    assert refusals(run_with(tmp_path, mixed)) == []


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
    Requirements(run).check_started("sandbox", "sandbox", driver)
    driver.capabilities = driver.capabilities - {"limits"}  # type: ignore[misc]
    with pytest.raises(
        PluginError, match=r"sandbox: needs\.capabilities\.sandbox needs a sandbox with 'limits' .* not on this machine"
    ):
        Requirements(run).check_started("sandbox", "sandbox", driver)


def test_the_command_line_refuses_before_a_run_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"run_dir: {tmp_path / 'runs'}\n{BASE}")
    for command in (["run"], ["config", "validate"]):
        done = ale(*command, tmp_path / "run.yaml", "needs.network=full")
        assert done.returncode == 2
        assert done.stderr.startswith("error: sandbox: needs.network=full needs a sandbox with 'network_full'")
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_word_that_no_kind_knows_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no capability 'snapsht' of kind sandbox"):
        run_with(tmp_path, "needs.capabilities={sandbox: [snapsht]}")


def test_experts_are_for_an_algorithm_that_starts_from_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.experts: there is no such key"):
        run_with(tmp_path, "algorithm={use: pg, experts: {demonstrate: 2}}")


def test_an_expert_that_comes_from_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="experts has no source"):
        run_with(tmp_path, "algorithm={use: ipa, experts: {demonstrations: false}}")
    with pytest.raises(ConfigError, match="is no run folder"):
        plan(run_with(tmp_path, f"algorithm={{use: ipa, experts: {{data: [{tmp_path}]}}}}"))
    experts = "algorithm={use: ipa, experts: {}}"
    byte_tokenizer().save(tmp_path)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match="the run makes no demonstrations"):
        plan(run_with(tmp_path, experts, "sft=null", "model.scratch=null", f"model.path={tmp_path}"))
    with pytest.raises(ConfigError, match=r"rl\.resample_even_groups takes away the groups"):
        plan(run_with(tmp_path, experts, "rl.resample_even_groups=2"))


def test_groups_of_one_cannot_be_compared(tmp_path: Path) -> None:
    replaced, alone = "rl.resample_even_groups=3", "algorithm={use: ipa, group_size: 1}"
    with pytest.raises(ConfigError, match=r"rl\.resample_even_groups: with algorithm\.group_size=1"):
        plan(run_with(tmp_path, replaced, alone))
    plan(run_with(tmp_path, alone))
    plan(run_with(tmp_path, replaced, "algorithm={use: ipa, group_size: 2}"))
