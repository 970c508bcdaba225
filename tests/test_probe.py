"""Before a run trains, and after its first update, engine and trainer must compute the same log-probabilities."""

from __future__ import annotations

from pathlib import Path

import pytest
from ale_command import TINY, ale, summary_of

from ale.store.run_store import RunStore

NO_EVALUATION = ("eval=null", "sft.steps=1")
ENGINES = '''
from dataclasses import replace
from ale_engine_torch import TorchEngine


class Deaf(TorchEngine):
    """It says that it has new weights, and goes on with the old ones."""

    async def load_weights(self, policy):
        self.offset = getattr(self, "offset", -1) + 1
        if self.offset:  # the first update is that of the supervised warm start
            self._version = policy.version
        else:
            await super().load_weights(policy)


class Blind(TorchEngine):
    """It has no log-probabilities."""

    async def generate(self, request):
        made = await super().generate(request)
        return replace(made, logprobs=(0.0,) * len(made.logprobs))


class Odd(TorchEngine):
    """Its log-probabilities are no numbers."""

    async def generate(self, request):
        made = await super().generate(request)
        return replace(made, logprobs=(float("nan"),) * len(made.logprobs))
'''


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "engines.py").write_text(ENGINES)
    (tmp_path / "run.yaml").write_text(TINY.format(runs=tmp_path / "runs"))
    return tmp_path / "run.yaml"


def probes(folder: Path) -> list[dict[str, float]]:
    with RunStore.open(folder) as store:
        return [data for _, kind, data in store.events() if kind == "probe"]


def test_a_run_proves_it_before_the_first_step_after_the_first_update_and_after_a_resume(run_file: Path) -> None:
    out = run_file.parent / "run"
    assert summary_of(ale("run", run_file, *NO_EVALUATION, "rl.checkpoint_every=1", "--out", out))
    found = probes(out)
    assert [each["version"] for each in found] == [1, 2]
    assert all(each["largest"] < 1e-4 == each["limit"] for each in found)


def test_an_engine_that_computes_something_else_stops_the_run_before_it_trains(run_file: Path) -> None:
    out = run_file.parent / "run"
    done = ale("run", run_file, *NO_EVALUATION, "engine.logit_noise=1", "--out", out)
    assert done.returncode == 1
    assert "the log-probabilities of version 1 differ by" in done.stderr
    assert "set rl.probe_limit above it" in done.stderr
    with RunStore.open(out) as store:
        assert not store.metrics("rl")
    meant = ale("run", run_file, *NO_EVALUATION, "engine.logit_noise=1", "rl.probe_limit=9", "--out", f"{out}-meant")
    assert meant.returncode == 0, meant.stderr


def test_an_update_that_does_not_arrive_stops_the_run_after_one_step(run_file: Path) -> None:
    out = run_file.parent / "run"
    changes = ("engine.use=./engines.py:Deaf", "rl.lr=0.01", "--out", out)
    done = ale("run", run_file, *NO_EVALUATION, *changes, cwd=run_file.parent)
    assert done.returncode == 1
    assert "the log-probabilities of version 2 differ by" in done.stderr
    with RunStore.open(out) as store:
        assert [step for step, _ in store.metrics("rl")["reward"]] == [1]


def test_log_probabilities_that_are_no_numbers_stop_the_run(run_file: Path) -> None:
    done = ale("run", run_file, *NO_EVALUATION, "engine.use=./engines.py:Odd", cwd=run_file.parent)
    assert done.returncode == 1
    assert "differ by nan nats" in done.stderr


def test_an_engine_without_log_probabilities_is_a_warning(run_file: Path) -> None:
    done = ale("run", run_file, *NO_EVALUATION, "engine.use=./engines.py:Blind", cwd=run_file.parent)
    assert done.returncode == 0, done.stderr
    assert "The engine gives no log-probabilities" in done.stderr
