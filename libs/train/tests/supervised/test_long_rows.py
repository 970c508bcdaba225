"""Demonstrations that are longer than the model's context."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale.trajectory import Chunk, Score, Sequence, Trajectory
from ale_train.config.run import ModelConfig
from ale_train.config.scratch_model import ScratchModel
from ale_train.config.supervised import SFTConfig
from ale_train.models.policy_checks import model_context
from ale_train.supervised.long_rows import cut_off, describe_overlong, find_overlong, fit, longest_sequence


def made(name: str, *turns: tuple[int, int]) -> Trajectory:
    """A demonstration with these turns, by their first token and their end."""
    chunks = tuple(Chunk(i, 0, a, b, (), (), "stop", sampled=False, turn=i) for i, (a, b) in enumerate(turns))
    reward = Score(1.0, True, by_chunk=tuple(float(i) for i, _ in enumerate(turns)))
    sequence = Sequence(tuple(range(turns[-1][1])), ())
    return Trajectory(name, "t", "train", "rows", 0, name, 0, 0, (sequence,), chunks, reward=reward)


ROWS = [made("short", (2, 5)), made("long", (2, 5), (7, 12), (14, 20)), made("late", (11, 20))]


def test_they_are_dropped_and_counted() -> None:
    found = find_overlong(ROWS, 10)
    assert found == {"long": 20, "late": 20}
    line = describe_overlong(found, len(ROWS), 10, "drop")
    assert line.startswith("sft.overlong: 2 of 3 demonstrations have a sequence of more than 10 tokens")
    assert "long: 20 tokens, late: 20 tokens" in line
    assert [t.id for t in fit(ROWS, 10, "drop")] == ["short"]
    assert fit(ROWS, 20, "drop") == fit(ROWS, None, "drop") == ROWS


def test_what_is_left_of_them_is_trained_on() -> None:
    short, long = fit(ROWS, 10, "truncate")
    assert short is ROWS[0]
    assert [(c.start, c.end, c.finish_reason) for c in long.chunks] == [(2, 5, "stop"), (7, 10, "length")]
    assert len(long.sequences[0].token_ids) == 10
    assert long.reward is not None
    assert long.reward.by_chunk == (0.0, 1.0)
    assert not cut_off(ROWS[2], 10).chunks, "its reply begins beyond the limit"


@pytest.mark.parametrize(("overlong", "rows"), [("fail", ROWS), ("drop", ROWS[1:])])
def test_they_end_the_run_if_they_are_to_or_if_nothing_else_is_left(overlong: str, rows: list[Trajectory]) -> None:
    with pytest.raises(ConfigError, match="have a sequence of more than 10 tokens"):
        describe_overlong(find_overlong(rows, 10), len(rows), 10, overlong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no demonstration has a reply that begins within 10 tokens"):
        fit(ROWS[2:], 10, "truncate")


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": None}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": {"type": "linear", "factor": 4.0}}, 2048),
        (
            {
                "max_position_embeddings": 40960,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {
                    "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192
                },
            },
            131072,
        ),
        ({"text_config": {"max_position_embeddings": 256}}, 256),
        ({}, None),
    ],
)  # fmt: skip
def test_the_context_is_that_of_the_models_configuration(
    tmp_path: Path, config: dict[str, object], longest: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_context(tmp_path) == longest
    assert longest_sequence(SFTConfig(), ModelConfig(path=tmp_path)) == longest
    assert longest_sequence(SFTConfig(max_tokens=64), ModelConfig(path=tmp_path)) == 64
    assert longest_sequence(SFTConfig(), ModelConfig(scratch=ScratchModel(max_length=128))) == 128
