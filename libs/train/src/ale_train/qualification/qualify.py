"""Makes the rollouts by which tasks are judged: checks without a model, and attempts of policies.

1. A check is an episode in which the reference solution, or nothing at all, runs in the agent's place. Sandbox, files
   and reward are the run's own, and tests reach the sandbox when the reward is computed, as in training. A reward that
   judges what an agent said would judge nothing there, so a task without tests, or with such a reward, is not scored.
2. An attempt is a rollout as in training, with the policy's sampling. Tasks that fail their checks get none.
3. Each rollout is stored in a run store when it ends, under a digest of its task (and of the policy), so that a second
   start runs only what is missing. A rejected rollout does not count and is run again.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ale.errors import ConfigError, EngineError
from ale.rollout.episode import StageInfo
from ale.rollout.filters import without_score
from ale.rollout.scheduler import Rollouts
from ale.rollout.selection import Option, Selection
from ale.session.tokenizer import ChatTokenizer
from ale.specs.algorithm import RolloutRequest
from ale.specs.driver import Driver
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer
from ale.specs.reward import Reward
from ale.specs.sandbox import Sandbox
from ale.specs.scaffold import ModelSession, Scaffold
from ale.store.run_store import RunStore
from ale.task import Task
from ale_train.models.template_override import WITH_TEMPLATE, apply_template
from ale_train.qualification.instance_report import Checks, Instance, Limits, Rate, judge, why_unsound
from ale_train.workbench.workbench import Workbench

UNTOUCHED, SOLUTION, ATTEMPT = "check untouched", "check solution", "attempt"
DIGEST_CHARS = 24
WITHOUT_AGENT = "it was read, but not scored: its reward judges an agent's messages, and no agent ran"
MOST_TASKS = 100_000
"""How many tasks of a source are read at most, because a source may be endless."""


@dataclass(frozen=True)
class Policy:
    """A policy whose pass rate is measured: a model folder, or without one the run file's model. `key` changes with the
    folder's files."""

    name: str
    key: str
    folder: Path | None = None

    @classmethod
    def of(cls, folder: Path) -> Policy:
        """The policy of a model folder. Raises `ConfigError`."""
        if not (folder / "config.json").is_file():
            raise ConfigError(f"--policy {folder}: there is no model (it holds no config.json).")
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        stamps = [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        return cls(str(folder), _digest(f"{folder.resolve()} {stamps}"), folder)


class NoEngine(InferenceEngine):
    """The engine of a run in which nothing samples, such as a check of tasks: it holds no model and answers every
    request with an `EngineError`."""

    max_context = 1 << 30
    version = 0

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Do nothing."""

    async def load_weights(self, policy: PolicyVersion) -> None:
        """Do nothing."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Raise `EngineError`."""
        raise EngineError("This run has no engine: nothing samples.")


class Untouched(Scaffold):
    """An agent that does nothing, so that the environment stays untouched."""

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        """Do nothing."""
        return "untouched"


class ReferenceSolution(Scaffold):
    """Runs the task's own solution, as the agent's user in the work folder."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        """Run it; the episode's time-out ends it."""
        script = (task.solution or "").encode("utf-8", "surrogateescape")
        await sandbox.exec('eval "$(cat)"', stdin=script, timeout_s=self.timeout_s)
        return "solution"


def tasks_of(bench: Workbench, split: str, count: int | None) -> list[Task]:
    """Return the first `count` tasks of a split, each once; None: all. Raises `ConfigError` for an endless source."""
    found: dict[str, Task] = {}
    for seen, task in enumerate(bench.tasks_once(split)):
        if seen >= MOST_TASKS:
            raise ConfigError(
                f"The task source '{bench.config.tasks.use}' has more than {MOST_TASKS} tasks in its split '{split}', "
                "or no end; say with --count how many to look at."
            )
        found.setdefault(task.id, task)
        if len(found) == count:
            break
    if not found:
        raise ConfigError(
            f"The task source '{bench.config.tasks.use}' has no tasks in its split '{split}': name another with "
            "--split, or give "
            "it some with its settings in the section tasks (`ale config describe tasks NAME` lists them)."
        )
    return list(found.values())


async def check_tasks(bench: Workbench, tasks: Sequence[Task], split: str, repeats: int) -> dict[str, Checks]:
    """Score each task untouched and solved, `repeats` times each in a fresh sandbox; by task id."""
    solved = [task for task in tasks if task.solution is not None]
    agents = (
        (UNTOUCHED, Untouched(), tasks),
        (SOLUTION, ReferenceSolution(bench.config.rollout.timeout_s), solved),
    )
    for name, agent, chosen in agents:
        alone: Selection[Scaffold] = Selection("scaffold", [Option(name, agent)])
        episodes = replace(bench.rollouts.episodes, scaffold=alone)
        rollouts = Rollouts(episodes, bench.store, bench.rollouts.advance, without_score)
        requests = [request for t in chosen for request in _scored_requests(bench, name, t, repeats)]
        requests.sort(key=lambda request: request.seed)
        await _run_missing(bench, rollouts, requests, StageInfo(name, 0, split, temperature=0.0))
    untouched, solution = read_outcomes(bench.store, UNTOUCHED), read_outcomes(bench.store, SOLUTION)
    checks = {}
    for task in tasks:
        groups = [request.group for request in _scored_requests(bench, UNTOUCHED, task, repeats)]
        if not groups:
            checks[task.id] = Checks(solution=None, not_scored=WITHOUT_AGENT)
            continue
        passed, lost = _read_verdicts(untouched, groups)
        solutions: tuple[bool, ...] | None = None
        if task.solution is not None:
            requests = _scored_requests(bench, SOLUTION, task, repeats)
            solutions, also_lost = _read_verdicts(solution, [request.group for request in requests])
            lost = lost or also_lost
        checks[task.id] = Checks(untouched=passed, solution=solutions, problem=lost)
    return checks


def read_outcomes(store: RunStore, stage: str) -> dict[str, tuple[bool | None, str]]:
    """For each group of one rollout, return whether it passed, or None and why every try so far was rejected."""
    sql = (
        "SELECT grp, passed, rejected, CASE WHEN rejected IS NULL THEN '' ELSE json_extract(data, "
        "'$.rejected_because') END FROM trajectories WHERE stage = ? ORDER BY rejected IS NULL, rowid"
    )
    return {
        str(group): (bool(passed), "") if rejected is None else (None, str(because or rejected))
        for group, passed, rejected, because in store.rows(sql, (stage,))
    }


def _scored_requests(bench: Workbench, name: str, task: Task, repeats: int) -> list[RolloutRequest]:
    """Return the repeats of a check whose reward judges the sandbox by the task's tests."""
    requests = [RolloutRequest(task, _group(name, task, i), i) for i in range(repeats)]
    rewards = bench.rollouts.episodes.reward
    return [r for r in requests if task.tests is not None and _uses_sandbox(rewards.of(r).driver)]


def _uses_sandbox(reward: Reward) -> bool:
    return not isinstance(reward, Driver) or reward.uses_sandbox(reward.config)


async def attempt_tasks(
    bench: Workbench, tasks: Sequence[Task], split: str, policies: Sequence[Policy], attempts: int
) -> dict[str, dict[str, Rate]]:
    """Roll out each task `attempts` times with each policy; rates by task id and policy."""
    c = bench.config.rollout
    for i, policy in enumerate(policies):
        stage = StageInfo(ATTEMPT, i, split, temperature=c.temperature, top_p=c.top_p, top_k=c.top_k)
        requests = [
            RolloutRequest(task, _group(policy.key, task, k), _seed(bench.config.seed, policy, task, k))
            for k in range(attempts)
            for task in tasks
        ]
        known = read_outcomes(bench.store, ATTEMPT)
        if all(known.get(request.group, (None,))[0] is not None for request in requests):
            continue
        if policy.folder is not None:
            own = bench.folder / "model" / WITH_TEMPLATE / str(i)
            folder = apply_template(bench.config.model, policy.folder, own)
            await bench.use_model(folder, ChatTokenizer.load(folder))
        else:
            await bench.engine.load_model(None, bench.sessions.tokenizer)
        bench.progress.note(f"policy {policy.name}: {attempts} attempts at each of {len(tasks)} tasks")
        await _run_missing(bench, bench.rollouts, requests, stage)
    outcomes = read_outcomes(bench.store, ATTEMPT)
    rates: dict[str, dict[str, Rate]] = {}
    for task, policy in itertools.product(tasks, policies):
        passed, _ = _read_verdicts(outcomes, [_group(policy.key, task, k) for k in range(attempts)])
        rates.setdefault(task.id, {})[policy.name] = Rate(passed=sum(passed), attempts=len(passed))
    return rates


async def qualify(
    bench: Workbench,
    split: str,
    count: int | None,
    repeats: int,
    policies: Sequence[Policy],
    attempts: int,
    limits: Limits,
) -> list[Instance]:
    """Judge the tasks of a split by their checks and, if there are policies, their pass rates."""
    tasks = tasks_of(bench, split, count)
    checks = await check_tasks(bench, tasks, split, repeats)
    sound = [task for task in tasks if not why_unsound(checks[task.id])]
    rates = await attempt_tasks(bench, sound, split, policies, attempts)
    return [judge(task, checks[task.id], rates.get(task.id, {}), limits) for task in tasks]


async def _run_missing(
    bench: Workbench, rollouts: Rollouts, requests: Sequence[RolloutRequest], stage: StageInfo
) -> None:
    """Run the requests that have no outcome in the store yet."""
    known = read_outcomes(bench.store, stage.name)
    left = [request for request in requests if known.get(request.group, (None,))[0] is None]
    bench.progress.stage(stage.name, len(left))
    await rollouts.run(left, stage)


def _read_verdicts(
    outcomes: Mapping[str, tuple[bool | None, str]], groups: Sequence[str]
) -> tuple[tuple[bool, ...], str]:
    """Return the verdicts of these groups, and the reason if one is missing."""
    found = [outcomes.get(group, (None, "it was not run")) for group in groups]
    return tuple(v for v, _ in found if v is not None), next((why for v, why in found if v is None), "")


def _group(who: str, task: Task, number: int) -> str:
    return f"{who}.{number}.{_digest(task.model_dump_json())}"


def _seed(seed: int, policy: Policy, task: Task, number: int) -> int:
    return int(_digest(f"{seed} {policy.key} {task.id} {number}"), 16) % (1 << 62)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]
