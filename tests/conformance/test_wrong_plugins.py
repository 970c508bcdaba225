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
RESET = """{sandbox}
        real = box.reset
        async def reset(spec):
            await real(spec)
            await box.exec({left!r})
        box.reset = reset
""".replace("{sandbox}", SANDBOX)
SHELL = (
    SANDBOX.replace("ExecResult", "ExecResult, Shell")
    + """
        real = box.open_shell
        async def open_shell(**more):
            return Other(await real(**more), box)
        box.open_shell = open_shell
class Other(Shell):
    def __init__(self, inner, box):
        self.inner, self.box = inner, box
    async def run(self, command, **more):
        return await self.inner.run(command, **more)
    async def close(self):
        await self.inner.close()
"""
)
STREAM = (
    SANDBOX.replace("ExecResult", "ExecResult, Output")
    + """
        real = box.exec_stream
        async def exec_stream(command, **more):
"""
)
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
AWAITED_S = 30
"""For what only shows as something that does not come: the kit waits for a quarter of it."""


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
        "test_what_it_cannot_give_is_refused_and_not_ignored", "a spec with full, which the provider does not claim to give: it must raise ConfigError"),
    "sandboxes left at close": Wrong("sandbox", SANDBOX + "        self.sandboxes.pop(box.id)\n",
        "test_closing_the_provider_stops_everything", "a command whose provider is closed", timeout_s=AWAITED_S),
    "a lifetime that is not heard": Wrong("sandbox", SANDBOX.replace("super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'lifetime_s': None}))"),
        "test_a_lifetime_ends_the_sandbox_or_is_refused", "a sandbox with lifetime_s=1 must be gone by then", timeout_s=AWAITED_S),
    "idleness that is not heard": Wrong("sandbox", SANDBOX.replace("super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'idle_s': None}))"),
        "test_an_idle_sandbox_ends_and_a_busy_one_does_not_or_it_is_refused", "a sandbox with idle_s=1.5 must be gone by then", timeout_s=AWAITED_S),
    "limits that are not heard": Wrong("sandbox", SANDBOX.replace("super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'resources': type(spec.resources)(pids=4000)}))"),
        "test_limits_bite", "a command must not start 200 processes where pids is 32"),
    "another work folder": Wrong("sandbox", SANDBOX.replace("super().start_sandbox(spec)", "super().start_sandbox(spec.model_copy(update={'workdir': '/elsewhere'}))"),
        "test_commands_begin_in_the_work_folder_of_the_spec", "commands must begin in the spec's workdir"),
    "a capability that is not true": Wrong("sandbox", SANDBOX + """
    @classmethod
    def provides(cls, config):
        return super().provides(config) | {"snapshot"}
""", "test_a_snapshot_brings_the_files_back", "PluginError", config="isolation: none"),
    "a snapshot of the work folder alone": Wrong("sandbox", SANDBOX + """
        from dataclasses import replace
        box.camera = replace(box.camera, places=box.camera.places[2:])
""", "test_a_snapshot_holds_files_as_they_are", "files, modes and links must be as they were, in the home and /tmp too"),
    "a snapshot that loses what runs": Wrong("sandbox", SANDBOX + """
        real = box.snapshot
        async def snapshot(name=None, processes=False):
            return await real(name)
        box.snapshot = snapshot
    capabilities = LocalSandboxProvider.capabilities | {"checkpoint"}
    @classmethod
    def provides(cls, config):
        return LocalSandboxProvider.provides(config) | {"checkpoint"}
    async def start(self):
        await super().start()
        self.capabilities |= {"checkpoint"}
""", "test_what_runs_goes_on_and_goes_on_from_there", "what ran must run in a sandbox that starts from a snapshot with processes"),
    "an unnamed snapshot that stays": Wrong("sandbox", SANDBOX + """
    async def close(self):
        if self.layers is not None:
            self.layers.unnamed.clear()
        await super().close()
""", "test_named_snapshots_stay_until_they_are_removed_and_others_do_not", "a snapshot without a name must go with its provider"),
    "a removal that does nothing": Wrong("sandbox", SANDBOX + """
    async def remove_snapshot(self, name):
        pass
""", "test_named_snapshots_stay_until_they_are_removed_and_others_do_not", "remove_snapshot() must take it off the list"),
    "a snapshot that ends what runs": Wrong("sandbox", SANDBOX + """
        real = box.snapshot
        async def snapshot(name=None):
            await box.kill_agent_processes()
            return await real(name)
        box.snapshot = snapshot
""", "test_a_snapshot_may_be_made_while_processes_run", "what runs must go on after a snapshot"),
    "a fork that is a copy": Wrong("sandbox", SANDBOX.replace("return box", "if spec.from_snapshot:\n            await box.exec('cp large copy')\n        return box"),
        "test_forks_cost_no_copy", "a fork must not hold a copy of the snapshot"),
    "a tree that follows links": Wrong("sandbox", SANDBOX + """
        real = box.download_tree
        async def download_tree(source, target, **more):
            await box.exec(f"rm -rf /tmp/flat; cp -rL {source} /tmp/flat")
            await real("/tmp/flat", target, **more)
        box.download_tree = download_tree
""", "test_what_a_sandbox_must_not_hand_out_leaves_nothing", "download_tree of a tree with a link out of it (abs): it must raise SandboxError, it returned None"),
    "a tree whose links are files of the host": Wrong("sandbox", SANDBOX + """
        real = box.upload_tree
        async def upload_tree(source, target, **more):
            if source.is_dir():
                import shutil
                source = shutil.copytree(source, source.with_name("flat-" + source.name))
            await real(source, target, **more)
        box.upload_tree = upload_tree
""", "test_what_leads_out_of_a_tree_of_the_hosts_is_not_sent", "upload_tree of a tree with a link out of it (absolute): it must raise SandboxError, it returned None"),
    "a tree without its executable bits": Wrong("sandbox", SANDBOX + """
        real = box.upload_tree
        async def upload_tree(source, target, **more):
            await real(source, target, **more)
            await box.exec(f"find {target} -type f -exec chmod a-x {{}} +")
        box.upload_tree = upload_tree
""", "test_a_tree_comes_back_as_it_went_in", "upload_tree must keep the executable bit: a program in the tree must run"),
    "half a tree after a refusal": Wrong("sandbox", SANDBOX + """
        real = box.download_tree
        async def download_tree(source, target, **more):
            try:
                await real(source, target, **more)
            except SandboxError:
                target.mkdir(exist_ok=True)
                raise
        box.download_tree = download_tree
""", "test_what_a_sandbox_must_not_hand_out_leaves_nothing", "after a refusal nothing may be left; there is ['mine', 'target']"),
    "a task left at close": Wrong("sandbox", SANDBOX + "        self.watcher = asyncio.create_task(asyncio.sleep(3600))\n",
        "test_sandboxes_know_nothing_of_each_other", "the plugin must leave no asyncio task behind"),
    "a reset that leaves a process": Wrong("sandbox", RESET.format(left="setsid sleep 100 >/dev/null 2>&1 &"),
        "test_nothing_is_left_of_what_was_done and processes", "a reset sandbox must look like a new one"),
    "a reset that leaves a file": Wrong("sandbox", RESET.format(left="echo left > /tmp/left"),
        "test_nothing_is_left_of_what_was_done and files", "a reset sandbox must look like a new one"),
    "a reset that leaves a mode": Wrong("sandbox", RESET.format(left="chmod 700 /tmp"),
        "test_nothing_is_left_of_what_was_done and files", "a reset sandbox must look like a new one"),
    "a reset that leaves shared memory": Wrong("sandbox", RESET.format(left="ipcmk -M 4096"),
        "test_nothing_is_left_of_what_was_done and memory", "a reset sandbox must look like a new one"),
    "a reset that leaves what comes back": Wrong("sandbox", RESET.format(left="(sleep 0.2; echo left > /tmp/left) >/dev/null 2>&1 &"),
        "test_it_is_as_new_or_says_that_it_is_not and deeply", "reset() must mend it, or raise SandboxError"),
    "a reset that keeps the environment": Wrong("sandbox", SANDBOX + """
        real = box.reset
        async def reset(spec):
            await real(spec.model_copy(update={'env': {**box.spec.env, **spec.env}}))
            box.spec = spec
        box.reset = reset
""", "test_it_has_the_environment_the_files_and_the_labels_of_the_new_spec", "the environment must be that of the new spec alone"),
    "a reset that lets shells live": Wrong("sandbox", SANDBOX + """
        real, opened = box.reset, box.open_shell
        async def open_shell(**more):
            shell = await opened(**more)
            run = shell.run
            async def again(command, **more):
                try:
                    return await run(command, **more)
                except SandboxError:
                    return ExecResult(0, b"", b"", 0.1)
            shell.run = again
            return shell
        box.open_shell = open_shell
""", "test_no_shell_lives_through_a_reset", "a command in a shell from before a reset: it must raise SandboxError"),
    "a reset to anything": Wrong("sandbox", SANDBOX + """
        real = box.reset
        async def reset(spec):
            await real(spec.model_copy(update={'workdir': box.spec.workdir}))
        box.reset = reset
""", "test_a_reset_changes_nothing_that_was_fixed_at_the_start", "a reset to another workdir: it must raise ConfigError"),
    # shells and streams of a sandbox
    "a shell that gives late output to the next command": Wrong("sandbox", SHELL + """
    async def run(self, command, **more):
        done = await self.inner.run(f"{{ {command}\\n}} >>$HOME/log", **more)
        said = await self.inner.run("cat $HOME/log; : >$HOME/log")
        return ExecResult(done.exit_code, said.stdout, done.stderr, done.duration_s, done.timed_out)
""", "test_what_a_job_writes_later_is_no_later_commands_output", "what an earlier command's background job writes belongs to nobody"),
    "a shell that forgets its folder when it is ended": Wrong("sandbox", SHELL + """
    async def run(self, command, **more):
        done = await self.inner.run(command, **more)
        if command.endswith("; exit 7"):
            await self.inner.run("cd $HERE")
        return done
""", "test_a_command_that_ends_the_shell_ends_it_for_nobody_else", "the next command must find folder, variables and functions as they were"),
    "a shell that is a new one each time": Wrong("sandbox", SHELL + """
    async def run(self, command, **more):
        return await self.box.exec(command, **more)
""", "test_folder_variables_and_functions_stay", "the folder must stay from one command to the next"),
    "a shell that ends at a syntax error": Wrong("sandbox", SHELL + """
    async def run(self, command, **more):
        done = await self.inner.run(command, **more)
        if done.exit_code == 2:
            await self.inner.close()
            self.inner = await type(self.box).open_shell(self.box)
        return done
""", "test_a_syntax_error_is_a_failed_command_and_the_shell_lives", "must not fail; it gave"),
    "a shell that finds its end in the output": Wrong("sandbox", SHELL + """
    async def run(self, command, **more):
        done = await self.inner.run(command, **more)
        return ExecResult(done.exit_code, done.stdout.partition(b"__END__")[0], done.stderr, done.duration_s, done.timed_out)
""", "test_output_that_looks_like_the_shells_own_is_output", "output must be taken for nothing else"),
    "a shell of text": Wrong("sandbox", SHELL + """
    async def run(self, command, **more):
        done = await self.inner.run(command, **more)
        return ExecResult(done.exit_code, done.stdout.replace(b"\\r", b""), done.stderr, done.duration_s, done.timed_out)
""", "test_commands_may_be_any_text_and_output_any_bytes", "output must be what was written, byte by byte"),
    "a time-out that ends earlier jobs": Wrong("sandbox", SHELL + """
    async def run(self, command, **more):
        done = await self.inner.run(command, **more)
        if done.timed_out:
            await self.box.kill_agent_processes()
        return done
""", "test_a_time_out_ends_what_the_command_started_and_nothing_else", "a time-out must not end a background job of an earlier command"),
    "a time-out that leaves what has a session of its own": Wrong("sandbox", SHELL + """
    async def run(self, command, timeout_s=60.0, **more):
        if timeout_s >= 60:
            return await self.inner.run(command, **more)
        await self.box.upload({"in/script": command.encode()})
        done = await self.inner.run(f"timeout -k 0 {timeout_s} sh script", **more)
        return ExecResult(124, done.stdout, done.stderr, done.duration_s, True)
""", "test_a_time_out_ends_what_the_command_started_and_nothing_else", "a time-out must kill all that the command started"),
    "a shell that is left running": Wrong("sandbox", SHELL + """
    async def close(self):
        self.run = self.gone
    async def gone(self, command):
        raise SandboxError("closed")
""", "test_closing_a_shell_ends_everything_that_it_started", "close must end the background jobs of the shell"),
    "a shell that outlives its sandbox as a failed command": Wrong("sandbox", SHELL + """
    async def run(self, command, **more):
        try:
            return await self.inner.run(command, **more)
        except SandboxError:
            return ExecResult(1, b"", b"gone", 0.1)
""", "test_a_shell_ends_with_its_sandbox", "a command in a shell whose sandbox is stopped: it must raise SandboxError, it returned ExecResult"),
    "a stream that comes at the end": Wrong("sandbox", STREAM + """
            for item in [item async for item in real(command, **more)]:
                yield item
        box.exec_stream = exec_stream
""", "test_output_comes_while_the_command_runs", "output must come as it is written, not when the command has ended", timeout_s=AWAITED_S),
    "a stream whose command outlives its reader": Wrong("sandbox", STREAM + """
            queue = asyncio.Queue()
            async def read():
                async for item in real(command, **more):
                    queue.put_nowait(item)
            task = asyncio.create_task(read())
            while not task.done() or not queue.empty():
                yield await queue.get()
        box.exec_stream = exec_stream
""", "test_a_reader_that_leaves_ends_the_command", "leaving a stream before its end must end its command"),
    "a stream that reads ahead": Wrong("sandbox", STREAM + """
            queue = asyncio.Queue()
            async def read():
                async for item in real(command, **more):
                    queue.put_nowait(item)
            task = asyncio.create_task(read())
            try:
                while not task.done() or not queue.empty():
                    yield await queue.get()
            finally:
                task.cancel()
                await asyncio.wait([task])
        box.exec_stream = exec_stream
""", "test_a_slow_reader_makes_the_command_wait_and_nobody_else", "a command whose output is not read must wait"),
    "a stream that is cut": Wrong("sandbox", STREAM + """
            left = 1 << 20
            async for item in real(command, **more):
                if isinstance(item, Output):
                    left -= len(item.data)
                if left > 0 or isinstance(item, ExecResult):
                    yield item
        box.exec_stream = exec_stream
""", "test_nothing_of_a_stream_is_cut_or_changed", "stdout must come whole"),
    "a result with the output in it again": Wrong("sandbox", STREAM + """
            said = b""
            async for item in real(command, **more):
                if isinstance(item, Output):
                    said += item.data
                    yield item
                else:
                    yield ExecResult(item.exit_code, said, b"", item.duration_s, item.timed_out)
        box.exec_stream = exec_stream
""", "test_a_stream_is_a_command_as_any_other", "the result must hold no output"),
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
""", "test_cancelling_a_call_frees_its_place", "TimeoutError", "answers: [hello]", timeout_s=AWAITED_S),
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
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        try:
            return await super().update(batch, loss, lr=lr, weight_decay=weight_decay)
        except Exception:
            return {"loss": 0.0}
""", "test_a_loss_that_is_no_number_is_refused_and_changes_nothing", "a loss that is not finite: it must raise TrainerError, it returned", "threads: 1"),
    "a gradient that is nan is trained on": Wrong("trainer", TRAINER + """
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        try:
            return await super().update(batch, loss, lr=lr, weight_decay=weight_decay)
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
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        def own(inputs):
            return loss(replace(inputs, normalizer=float(len(inputs.logprobs)) + 0.5))
        return await super().update(batch, own, lr=lr, weight_decay=weight_decay)
""", "test_the_loss_is_shown_whole_trajectories_and_the_whole_batchs_normalizer", "normalizer is the batch's", "threads: 1"),
    "the optimizer is not saved": Wrong("trainer", TRAINER + """
    async def load(self, folder):
        await super().load_model(folder)
""", "test_what_is_saved_is_what_is_loaded", "load() must bring the optimizer back too", "threads: 1"),
    "lr is not heard": Wrong("trainer", TRAINER + """
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        return await super().update(batch, loss, weight_decay=weight_decay)
""", "test_an_update_makes_trained_tokens_likelier", "lr= must win over the configured rate", "threads: 1"),
    "maxima are forgotten": Wrong("trainer", TRAINER + """
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        hidden = lambda inputs: replace(loss(inputs), maxima={})
        return await super().update(batch, hidden, lr=lr, weight_decay=weight_decay)
""", "test_of_what_a_loss_calls_a_maximum", "update() must return LossOutput.maxima too", "threads: 1"),
    "a reference that learns along": Wrong("trainer", TRAINER + """
    async def reference_logprobs(self, batch):
        await super().reference_logprobs(batch)
        return await self.logprobs(batch)
""", "test_the_reference_policy_stays_what_it_was", "an update must not change the reference", "threads: 1"),
    "a reference that is not saved": Wrong("trainer", TRAINER + """
    async def load(self, folder):
        await super().load(folder)
        await self.keep_reference()
""", "test_a_checkpoint_holds_the_reference_policy", "load() must bring back the reference that was saved", "threads: 1"),
    "weight decay is not heard": Wrong("trainer", TRAINER + """
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        return await super().update(batch, loss, lr=lr)
""", "test_weight_decay_pulls_the_weights_towards_nothing_where_no_gradient_does", "weight_decay= must pull the weights", "threads: 1"),
    "weight decay stays": Wrong("trainer", TRAINER + """
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        self.decay = weight_decay or getattr(self, "decay", None)
        return await super().update(batch, loss, lr=lr, weight_decay=self.decay)
""", "test_weight_decay_pulls_the_weights_towards_nothing_where_no_gradient_does", "must hold for that step alone", "threads: 1"),
    # algorithm
    "a reference that no trainer is asked for": Wrong("algorithm", ALGORITHM + """
    @classmethod
    def needs(cls, config):
        return {}
""", "test_metrics_are_plain_numbers", "must name it in needs()", "kl_coef: 0.1"),
    "the prompt is trained on": Wrong("algorithm", ALGORITHM + """
    def batch(self, trajectories):
        made = super().batch(trajectories)
        return made and replace(made, chunk_ids=np.maximum(made.chunk_ids, 0))
""", "test_only_tokens_that_the_policy_sampled_carry_loss", "tokens outside chunks (prompt, tool output) must carry no loss"),
    "a title is trained on": Wrong("algorithm", ALGORITHM + """
    def batch(self, trajectories):
        return super().batch([replace(t, chunks=tuple(replace(c, side=False) for c in t.chunks)) for t in trajectories])
""", "test_a_side_call_carries_no_loss_and_is_no_step", "the answer to a side call (a title, a summary) must carry no loss"),
    "a title is a step": Wrong("algorithm", ALGORITHM + """
    def batch(self, trajectories):
        made = super().batch(trajectories)
        counts = np.array([len(trajectories[i].chunks) for i in made.chunks.trajectory])
        return replace(made, chunks=replace(made.chunks, count=counts))
""", "test_a_side_call_carries_no_loss_and_is_no_step", "a side call is no step"),
    "an entropy that is a sum": Wrong("algorithm", ALGORITHM + """
    def metrics(self, totals):
        return {**super().metrics(totals), "entropy": totals["entropy_sum"]}
""", "test_a_mean_entropy_is_one_over_the_tokens_with_loss", "must be the mean over the tokens with loss: 0.5 where each has 0.5"),
    "seeds that repeat": Wrong("algorithm", ALGORITHM + """
    def plan(self, tasks, history):
        return [replace(r, seed=1) for r in super().plan(tasks, history)]
""", "test_plan_asks_for_group_size_rollouts_of_each_task", "every rollout must have a seed of its own"),
    "a start that is none of the task's": Wrong("algorithm", ALGORITHM + """
    def plan(self, tasks, history):
        paths = [path for known in history.experts.values() for path in known]
        return [replace(r, expert=paths[0]) if paths else r for r in super().plan(tasks, history)]
""", "test_rollouts_start_on_the_path_of_an_expert_of_their_task_or_at_the_beginning", "replays an expert of 'task-0'"),
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
    "a tool's name for a set of them": Wrong("scaffold", SCAFFOLD + """
    deterministic_tools = "look"
""", "test_the_tools_that_it_vouches_for_are_names", "deterministic_tools must be a frozenset of tools' names, not 'look'"),
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
