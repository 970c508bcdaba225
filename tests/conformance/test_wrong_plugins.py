"""Deliberately wrong plugins: each breaks one rule of its contract, and the kit says which."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from kit import run_kit
from strangers import write_package

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]

SANDBOX = """
from ale.errors import SandboxError
from ale.specs.sandbox import ExecResult
from ale_local import LocalSandboxProvider
import asyncio
class Fixed(LocalSandboxProvider):
    async def start_sandbox(self, spec):
        box = await super().start_sandbox(spec)
        self.spoil(box)
        return box
    def spoil(self, box):
        pass
"""
ENGINE = "from ale_scripted import ScriptedEngine\nfrom dataclasses import replace\nimport asyncio\nclass Fixed(ScriptedEngine):\n"
TRAINER = "from ale_trainer_torch import TorchTrainer\nimport numpy as np\nfrom dataclasses import replace\nimport asyncio\nclass Fixed(TorchTrainer):\n"
ALGORITHM = "from ale_ipa import IPA\nfrom dataclasses import replace\nimport numpy as np\nclass Fixed(IPA):\n"
SCAFFOLD = "from ale_iflow import IFlow\nfrom ale.errors import SandboxError\nimport asyncio\nclass Fixed(IFlow):\n"
REWARD = "from ale_tests import TestsReward\nfrom dataclasses import replace\nfrom ale.errors import SandboxError, TaskError\nfrom ale.trajectory import Score\nimport asyncio\nclass Fixed(TestsReward):\n"
TASKS = "from ale_bash import BashTasks\nfrom ale.errors import ConfigError\nimport itertools, random\nclass Fixed(BashTasks):\n"
HOOKS = """
import pydantic
from ale.specs.driver import PluginConfig
from ale.specs.events import Observer, hookimpl
class Fixed(Observer):
    api_version = ">=1.1,<1.3"
"""


@dataclass(frozen=True)
class Wrong:
    """A mutant: its kind, what it does, the test that fails, and what the failure says."""

    kind: str
    source: str
    test: str
    says: str
    config: str = ""
    timeout_s: float = 120.0


WRONG = {
    # sandbox
    "a dead sandbox as a failed command": Wrong("sandbox", SANDBOX + """
        real = box.exec
        async def exec(command, **more):
            try:
                return await real(command, **more)
            except SandboxError:
                return ExecResult(1, b"", b"gone", 0.1)
        box.exec = exec
""", "test_a_dead_sandbox_never_looks_like_a_failed_command", "a command whose sandbox was removed under it: it must raise SandboxError, it returned ExecResult"),
    "stderr in stdout": Wrong("sandbox", SANDBOX + """
        real = box.exec
        async def exec(command, **more):
            return await real(f"({command}) 2>&1", **more)
        box.exec = exec
""", "test_exec_gives_exit_code_stdout_and_stderr_apart", "exec must keep stdout and stderr apart and whole"),
    "a time-out without its code": Wrong("sandbox", SANDBOX + """
        real = box.exec
        async def exec(command, **more):
            done = await real(command, **more)
            return ExecResult(137, done.stdout, done.stderr, done.duration_s, done.timed_out) if done.timed_out else done
        box.exec = exec
""", "test_a_time_out_kills_everything_and_keeps_the_output_so_far", "a time-out must give exit code 124, as timeout(1) does; it gave 137"),
    "text only": Wrong("sandbox", SANDBOX + """
        real = box.upload
        async def upload(files, **more):
            await real({k: v.decode("utf-8", "replace").encode() for k, v in files.items()}, **more)
        box.upload = upload
""", "test_files_come_back_as_they_went_in", "download('every') must give what upload wrote"),
    "one command at a time": Wrong("sandbox", SANDBOX + """
        real, lock = box.exec, asyncio.Lock()
        async def exec(command, **more):
            async with lock:
                return await real(command, **more)
        box.exec = exec
""", "test_commands_run_side_by_side", "commands must run side by side"),
    "networks ignored": Wrong("sandbox", SANDBOX.replace("super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'network': 'none'}))"),
        "test_what_it_cannot_give_is_refused_and_not_ignored", "a spec with endpoint-only, which the provider does not claim to give: it must raise ConfigError"),
    "sandboxes left at close": Wrong("sandbox", SANDBOX + "        self.sandboxes.pop(box.id)\n",
        "test_closing_the_provider_stops_everything", "a command whose provider is closed"),
    "a lifetime that is not heard": Wrong("sandbox", SANDBOX.replace("super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'lifetime_s': None}))"),
        "test_a_lifetime_ends_the_sandbox_or_is_refused", "a sandbox with lifetime_s=1 must be gone by then"),
    "idleness that is not heard": Wrong("sandbox", SANDBOX.replace("super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'idle_s': None}))"),
        "test_an_idle_sandbox_ends_and_a_busy_one_does_not_or_it_is_refused", "a sandbox with idle_s=1.5 must be gone by then"),
    "limits that are not heard": Wrong("sandbox", SANDBOX.replace("super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'resources': type(spec.resources)(pids=4000)}))"),
        "test_limits_bite", "a command must not start 200 processes where pids is 32"),
    "another work folder": Wrong("sandbox", SANDBOX.replace("super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'workdir': '/elsewhere'}))"),
        "test_commands_begin_in_the_work_folder_of_the_spec", "commands must begin in the spec's workdir"),
    "a capability that is not true": Wrong("sandbox", SANDBOX.replace("    def spoil", "    capabilities = LocalSandboxProvider.capabilities | {'snapshot'}\n    def spoil"),
        "test_a_snapshot_brings_the_files_back", "PluginError"),
    "a task left at close": Wrong("sandbox", SANDBOX + "        self.watcher = asyncio.create_task(asyncio.sleep(3600))\n",
        "test_sandboxes_know_nothing_of_each_other", "the plugin must leave no asyncio task behind"),
    # engine
    "a logprob too few": Wrong("engine", ENGINE + """
    async def generate(self, request):
        made = await super().generate(request)
        return replace(made, logprobs=made.logprobs[:-1])
""", "test_a_generation_has_a_logprob_and_a_version_for_each_token", "one log-probability and one version a token", "answers: [hello]"),
    "more than max_tokens": Wrong("engine", ENGINE + """
    async def generate(self, request):
        return await super().generate(replace(request, sampling=replace(request.sampling, max_tokens=999)))
""", "test_many_requests_at_once_are_answered_each", "1 to max_tokens=1 tokens, not", "answers: [hello]"),
    "an answer after close": Wrong("engine", ENGINE + "    async def close(self): ...\n",
        "test_nothing_is_answered_after_close", "generate() after close(): it must raise EngineError, it returned Generation", "answers: [hello]"),
    "no answer after a cancelled call": Wrong("engine", ENGINE + """
    lock = None
    async def generate(self, request):
        self.lock = self.lock or asyncio.Lock()
        await self.lock.acquire()
        await asyncio.sleep(0.005)
        made = await super().generate(request)
        self.lock.release()
        return made
""", "test_cancelling_a_call_frees_its_place", "TimeoutError", "answers: [hello]"),
    "a pause that does nothing": Wrong("engine", ENGINE + "    async def pause(self): ...\n",
        "test_a_paused_engine_lets_requests_wait", "a paused engine must let requests wait; it answered", "answers: [hello]"),
    "a context without an end": Wrong("engine", ENGINE + """
    async def generate(self, request):
        return await super().generate(replace(request, token_ids=request.token_ids[-100:]))
""", "test_a_request_that_cannot_fit_is_refused", "a prompt beyond max_context: it must raise EngineError, it returned Generation", "answers: [hello]"),
    # trainer
    "the same version twice": Wrong("trainer", TRAINER + """
    async def publish(self):
        return replace(await super().publish(), version=1)
""", "test_every_publish_is_a_new_version_with_weights", "versions must rise: 1, 1", "threads: 1"),
    "a loss that is nan is trained on": Wrong("trainer", TRAINER + """
    async def update(self, batch, loss, *, lr=None):
        try:
            return await super().update(batch, loss, lr=lr)
        except Exception:
            return {"loss": 0.0}
""", "test_a_loss_that_is_no_number_is_refused_and_changes_nothing", "a loss that is not finite: it must raise TrainerError, it returned", "threads: 1"),
    "a gradient that is nan is trained on": Wrong("trainer", TRAINER + """
    async def update(self, batch, loss, *, lr=None):
        try:
            return await super().update(batch, loss, lr=lr)
        except Exception as error:
            if "gradient" not in str(error):
                raise
            return {"loss": 0.0}
""", "test_a_loss_that_is_no_number_is_refused_and_changes_nothing", "a gradient that is not finite: it must raise TrainerError, it returned", "threads: 1"),
    "a damaged optimizer is a fresh one": Wrong("trainer", TRAINER + """
    async def load(self, folder):
        try:
            await super().load(folder)
        except Exception:
            await super().load_model(folder)
""", "test_a_damaged_checkpoint_is_a_sentence", "is cut off: it must raise AleError, it returned None", "threads: 1"),
    "a token scored by its own logits": Wrong("trainer", TRAINER + """
    async def logprobs(self, batch):
        found = await super().logprobs(batch)
        return np.where(batch.chunk_ids >= 0, np.where(found * 0.9 < 0, found * 0.9, -1e-3), 0).astype(np.float32)
""", "test_a_tokens_logprob_is_given_by_the_tokens_before_it", "the probabilities must add up to 1, not", "threads: 1"),
    "weights that go on changing": Wrong("trainer", TRAINER + """
    async def publish(self):
        made = await super().publish()
        return replace(made, weights={k: v.data for k, v in self._learner.model.state_dict().items()})
""", "test_every_publish_is_a_new_version_with_weights", "published weights are copies", "threads: 1"),
    "the normalizer of each micro-batch": Wrong("trainer", TRAINER + """
    async def update(self, batch, loss, *, lr=None):
        def own(inputs):
            return loss(replace(inputs, normalizer=float(len(inputs.logprobs)) + 0.5))
        return await super().update(batch, own, lr=lr)
""", "test_the_loss_is_shown_whole_trajectories_and_the_whole_batchs_normalizer", "normalizer is the batch's", "threads: 1"),
    "the optimizer is not saved": Wrong("trainer", TRAINER + """
    async def load(self, folder):
        await super().load_model(folder)
""", "test_what_is_saved_is_what_is_loaded", "load() must bring the optimizer back too", "threads: 1"),
    "lr is not heard": Wrong("trainer", TRAINER + """
    async def update(self, batch, loss, *, lr=None):
        return await super().update(batch, loss)
""", "test_an_update_makes_trained_tokens_likelier", "lr= must win over the configured rate", "threads: 1"),
    # algorithm
    "the prompt is trained on": Wrong("algorithm", ALGORITHM + """
    def batch(self, trajectories):
        made = super().batch(trajectories)
        return made and replace(made, chunk_ids=np.maximum(made.chunk_ids, 0))
""", "test_only_tokens_that_the_policy_sampled_carry_loss", "tokens outside chunks (prompt, tool output) must carry no loss"),
    "seeds that repeat": Wrong("algorithm", ALGORITHM + """
    def plan(self, tasks, history):
        return [replace(r, seed=1) for r in super().plan(tasks, history)]
""", "test_plan_asks_for_group_size_rollouts_of_each_task", "every rollout must have a seed of its own"),
    "a mean over the micro-batch": Wrong("algorithm", ALGORITHM + """
    def loss(self, inputs):
        out = super().loss(inputs)
        return replace(out, loss=out.loss * inputs.normalizer / len(inputs.logprobs))
""", "test_micro_batches_add_up_to_the_batch", "the losses of micro-batches must add up to the batch's"),
    "a lost sandbox is a failure": Wrong("algorithm", ALGORITHM + """
    def batch(self, trajectories):
        return super().batch([replace(t, failure=None, reward=t.reward or replace(trajectories[0].reward, value=0.0, passed=False)) for t in trajectories])
""", "test_a_rollout_without_a_reward_is_not_one_of_nothing", "a rollout without a reward must carry no loss", "negative_signal: -0.2"),
    "a lost sandbox moves the mean": Wrong("algorithm", ALGORITHM + """
    def batch(self, trajectories):
        lost = sum(t.reward is None for t in trajectories)
        made = super().batch(trajectories)
        return made and replace(made, chunks=replace(made.chunks, returns=made.chunks.returns + lost))
""", "test_a_rollout_without_a_reward_is_not_one_of_nothing", "must change nothing for the others"),
    "the first context only": Wrong("algorithm", ALGORITHM + """
    def batch(self, trajectories):
        return super().batch([replace(t, sequences=t.sequences[:1], chunks=tuple(replace(c, sequence=0) for c in t.chunks)) for t in trajectories])
""", "test_only_tokens_that_the_policy_sampled_carry_loss", "tokens outside chunks (prompt, tool output) must carry no loss"),
    "a batch that teaches nothing": Wrong("algorithm", ALGORITHM + """
    def batch(self, trajectories):
        made = super().batch([t if t.reward is None else replace(t, reward=replace(t.reward, value=1.0, passed=True)) for t in trajectories])
        return made and replace(made, chunks=replace(made.chunks, returns=made.chunks.returns * 0))
""", "test_a_batch_that_teaches_nothing_is_none", "batch() gave one that carries no gradient: it must be None"),
    "an empty batch": Wrong("algorithm", ALGORITHM + """
    def batch(self, trajectories):
        return super().batch(trajectories) if trajectories else 0
""", "test_nothing_to_learn_from_is_no_batch", "batch() of no trajectories must be None"),
    # scaffold
    "a dead sandbox is swallowed": Wrong("scaffold", SCAFFOLD + """
    async def run(self, task, sandbox, session):
        try:
            return await super().run(task, sandbox, session)
        except SandboxError:
            return "finish"
""", "test_a_dead_sandbox_gets_out_as_a_sandbox_error", "an agent whose sandbox is dead: it must raise SandboxError, it returned 'finish'"),
    "the tests are told": Wrong("scaffold", SCAFFOLD + """
    async def run(self, task, sandbox, session):
        told = task.model_copy(update={"instruction": task.instruction + task.tests.command})
        return await super().run(told, sandbox, session)
""", "test_the_task_reaches_the_model_unchanged", "the model must not see the hidden tests"),
    "an unmarked call": Wrong("scaffold", SCAFFOLD + """
    async def run(self, task, sandbox, session):
        session.mark_error = lambda *what: None
        return await super().run(task, sandbox, session)
""", "test_a_call_that_cannot_be_carried_out_is_marked", "must be marked with session.mark_error()"),
    "commands on the host": Wrong("scaffold", SCAFFOLD + """
    async def run(self, task, sandbox, session):
        import subprocess
        async def exec(command, **more):
            subprocess.run(command, shell=True)
            return await real("true", **more)
        real, sandbox.exec = sandbox.exec, exec
        return await super().run(task, sandbox, session)
""", "test_commands_run_in_the_sandbox_and_nowhere_else", "must run, in the sandbox's work folder"),
    "a command that outlives its agent": Wrong("scaffold", SCAFFOLD + """
    async def run(self, task, sandbox, session):
        async def exec(command, **more):
            return await asyncio.shield(asyncio.ensure_future(real(command, **more)))
        real, sandbox.exec = sandbox.exec, exec
        return await super().run(task, sandbox, session)
""", "test_cancelling_an_agent_ends_its_command", "cancelling the agent must end the command"),
    "never cancelled": Wrong("scaffold", SCAFFOLD + """
    async def run(self, task, sandbox, session):
        while True:
            try:
                await asyncio.sleep(3)
                return "finish"
            except asyncio.CancelledError:
                pass
""", "test_cancelling_ends_the_agent_promptly", "a cancelled call must end as cancelled; it went on for"),
    # reward
    "a dead sandbox is a zero": Wrong("reward", REWARD + """
    async def score(self, task, sandbox, trajectory):
        try:
            return await super().score(task, sandbox, trajectory)
        except SandboxError:
            return Score(0.0, False)
""", "test_a_dead_sandbox_is_never_a_zero", "scoring in a dead sandbox: it must raise SandboxError, it returned Score(value=0.0"),
    "tests that cannot run are a zero": Wrong("reward", REWARD + """
    async def score(self, task, sandbox, trajectory):
        try:
            return await super().score(task, sandbox, trajectory)
        except TaskError:
            return Score(0.0, False)
""", "test_tests_that_cannot_run_are_never_a_zero", "tests that start with a program that is not there: it must raise SandboxError or TaskError, it returned Score(value=0.0"),
    "everything passes": Wrong("reward", REWARD + """
    async def score(self, task, sandbox, trajectory):
        return replace(await super().score(task, sandbox, trajectory), passed=True)
""", "test_tests_that_fail_are_never_passed", "must not call it passed where they fail"),
    "a time-out passes": Wrong("reward", REWARD + """
    async def score(self, task, sandbox, trajectory):
        found = await super().score(task, sandbox, trajectory)
        return replace(found, passed=found.passed or "did not end" in found.detail)
""", "test_tests_that_never_end_are_stopped", "tests that did not end must not count as passed"),
    "the agent may watch": Wrong("reward", REWARD + """
    async def score(self, task, sandbox, trajectory):
        async def nothing(): ...
        sandbox.kill_agent_processes = nothing
        return await super().score(task, sandbox, trajectory)
""", "test_the_agent_cannot_watch_the_tests_nor_find_them_later", "sandbox.kill_agent_processes() must have been called"),
    "the tests stay": Wrong("reward", REWARD + """
    async def score(self, task, sandbox, trajectory):
        await sandbox.kill_agent_processes()
        await sandbox.upload({"t/" + k: v.encode() for k, v in task.tests.files.items()})
        done = await sandbox.exec("ALE_TESTS=$PWD/t; " + task.tests.command)
        return Score(1.0, done.exit_code == 0)
""", "test_the_agent_cannot_watch_the_tests_nor_find_them_later", "hidden tests must be taken away after the scoring; left is check.sh"),
    "passed is a number": Wrong("reward", REWARD + """
    async def score(self, task, sandbox, trajectory):
        return Score(1.0, 1)
""", "test_it_gives_a_score_for_success_and_for_failure", "Score.passed must be true or false, not 1"),
    "upside down": Wrong("reward", REWARD + """
    async def score(self, task, sandbox, trajectory):
        found = await super().score(task, sandbox, trajectory)
        return Score(-found.value, found.passed)
""", "test_it_gives_a_score_for_success_and_for_failure", "a solved task must not score below an unsolved one"),
    # tasks
    "held-out tasks are trained on": Wrong("tasks", TASKS + """
    def tasks(self, split):
        return super().tasks("train" if split == "heldout" else split)
""", "test_ids_are_unique_and_the_splits_share_none", "held-out tasks must not be trained on"),
    "another order each time": Wrong("tasks", TASKS + """
    def tasks(self, split):
        some = list(itertools.islice(super().tasks(split), 60))
        random.shuffle(some)
        return some
""", "test_the_same_settings_give_the_same_tasks", "must be the same each time, in one order"),
    "any split will do": Wrong("tasks", TASKS + """
    def tasks(self, split):
        return super().tasks(split if split in ("train", "heldout") else "train")
""", "test_a_split_that_there_is_not_is_refused", "a split that there is not: it must raise ConfigError"),
    "a solution that does not solve": Wrong("tasks", TASKS + """
    def tasks(self, split):
        return (t.model_copy(update={"solution": "true"}) for t in super().tasks(split))
""", "test_reference_solutions_solve_their_tasks", "must pass its tests"),
    "a demonstrator that is none": Wrong("tasks", TASKS + """
    def demonstrator(self, task, seed):
        return object()
""", "test_somebody_shows_how_tasks_are_done", "a demonstrator is a coroutine function of messages and tools"),
    # observers
    "a coroutine as a hook": Wrong("hooks", HOOKS + """
    @hookimpl
    async def ale_run_finished(self, run_id): ...
""", "test_every_hook_takes_what_runs_tell", "ale_run_finished is called without await: it must be no coroutine"),
    "a veto that is no sentence": Wrong("hooks", HOOKS + """
    @hookimpl
    def ale_before_exec(self, command): return False
""", "test_every_hook_takes_what_runs_tell", "must answer None, or a sentence that refuses; it answered False"),
    "text only, in an observer": Wrong("hooks", HOOKS + """
    @hookimpl
    def ale_exec_started(self, stdin): stdin.decode()
""", "test_every_hook_takes_what_runs_tell", "ale_exec_started must not raise; it raised UnicodeDecodeError"),
    "no hook at all": Wrong("hooks", HOOKS, "test_its_hooks_fit_and_there_is_at_least_one", "an observer must implement at least one hook"),
    # every kind
    "a setting without a word": Wrong("hooks", HOOKS + """
    class Config(PluginConfig):
        level: int = 3
""", "test_every_setting_says_what_it_means", "the setting level must have a description"),
    "settings that take anything": Wrong("hooks", HOOKS + """
    class Config(PluginConfig):
        @pydantic.model_validator(mode="before")
        @classmethod
        def known(cls, data):
            return {}
""", "test_a_key_that_it_does_not_know_is_refused_wherever_it_stands", "Config must refuse unknown keys by their name"),
    "a wrong type that is taken": Wrong("hooks", HOOKS + """
    class Config(PluginConfig):
        level: int = pydantic.Field(3, description="How much.")
        @pydantic.field_validator("level", mode="before")
        @classmethod
        def any_level(cls, value):
            return value if isinstance(value, int) else 3
""", "test_a_setting_of_the_wrong_kind_is_a_sentence_with_its_path", "a wrong value of 'level' must be told with its path; it was taken"),
    "a start that waits for ever in a thread": Wrong("hooks", HOOKS + """
    async def start(self):
        import asyncio, threading
        await asyncio.to_thread(threading.Event().wait)
""", "test_it_may_be_closed_twice_and_without_a_start", "a call did not return within 2 s; and a thread of the plugin's, such as asyncio.to_thread starts, never ends", timeout_s=2),
    "a start that blocks the loop and survives every error": Wrong("hooks", HOOKS + """
    async def start(self):
        import time
        while True:
            try:
                time.sleep(1)
            except Exception:
                pass
""", "test_it_may_be_closed_twice_and_without_a_start", "a call blocked the event loop; blocking work belongs in a thread", timeout_s=2),
    "no version": Wrong("hooks", HOOKS.replace("    api_version", "    other"), "test_it_declares_the_versions_that_it_was_made_for", "the class must declare api_version = "),
    "a close that cannot be awaited": Wrong("hooks", HOOKS + """
    def close(self): ...
""", "test_its_methods_are_awaited_where_the_contract_awaits_them", "close() must be a coroutine function (async def): it is called with await"),
    "words at import": Wrong("hooks", HOOKS + "    @hookimpl\n    def ale_run_finished(self): ...\nprint('welcome')\n", "test_its_import_prints_nothing", "its import must print nothing; it printed 'welcome"),
    "a thread left behind": Wrong("hooks", HOOKS + """
    async def start(self):
        import threading
        for _ in range(3):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
""", "test_start_and_close_leave_nothing_behind", "start() and close() left behind"),
    "a file left behind": Wrong("hooks", HOOKS + """
    async def start(self):
        import tempfile
        tempfile.mkdtemp()
""", "test_start_and_close_leave_nothing_behind", "temporary entries"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    wrong = WRONG[what]
    write_package(tmp_path, "far-away", wrong.source, name="wrong", kind=wrong.kind)
    (tmp_path / "settings.yaml").write_text(wrong.config)
    done = run_kit(
        tmp_path, f"{wrong.kind}:wrong", "--ale-config", tmp_path / "settings.yaml", "-k", wrong.test,
        "--ale-timeout", str(wrong.timeout_s), path=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-1000:]
    assert "1 failed" in done.stdout
    assert wrong.says in done.stdout, done.stdout[-3000:]
