"""How a trajectory is stored: its numbers as arrays of bytes, everything else as JSON.

Tokens, log-probabilities and versions are most of a trajectory; as text they would be four times as large and slow to
read. The arrays hold, in the machine's byte order: three lengths for each sequence and chunk (tokens, versions,
log-probabilities) and the tokens and versions as int32, then the log-probabilities as float64, as exact as they came.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import PydanticSerializationError, from_json

from ale.trajectory import Trajectory

_ARRAYS: Any = {"__all__": {"sequences": {"__all__": {"token_ids"}}, "chunks": {"__all__": {"logprobs", "versions"}}}}


@cache
def _adapter() -> TypeAdapter[tuple[Trajectory]]:
    # Settings reach the dataclass only through a type that is none.
    return TypeAdapter(tuple[Trajectory], config=ConfigDict(ser_json_inf_nan="constants"))


def encode(trajectory: Trajectory) -> tuple[str, bytes]:
    """Return a trajectory as JSON and arrays, from which `decode` makes an equal one."""
    lengths, whole, real = array("i"), array("i"), array("d")
    for sequence in trajectory.sequences:
        lengths.append(len(sequence.token_ids))
        whole.extend(sequence.token_ids)
    for chunk in trajectory.chunks:
        lengths.extend((len(chunk.versions), len(chunk.logprobs)))
        whole.extend(chunk.versions)
        real.extend(chunk.logprobs)
    return _to_json(trajectory, _ARRAYS), (lengths + whole).tobytes() + real.tobytes()


def decode(text: str, arrays: bytes) -> Trajectory:
    """Return the trajectory that `encode` was given."""
    try:
        data = from_json(text)
    except ValueError:  # a lone surrogate, as below
        data = json.loads(text)
    sequences, chunks = data["sequences"], data["chunks"]
    count = len(sequences) + 2 * len(chunks)
    lengths = array("i", arrays[: count * 4]).tolist()
    reals = sum(lengths[len(sequences) + 1 :: 2])
    whole = array("i", arrays[count * 4 : len(arrays) - reals * 8]).tolist()
    real = array("d", arrays[len(arrays) - reals * 8 :]).tolist()
    position = done = 0
    for sequence, n in zip(sequences, lengths, strict=False):
        sequence["token_ids"] = whole[position : position + n]
        position += n
    of_chunks = iter(lengths[len(sequences) :])
    for chunk, n, m in zip(chunks, of_chunks, of_chunks, strict=True):
        chunk["versions"], chunk["logprobs"] = whole[position : position + n], real[done : done + m]
        position, done = position + n, done + m
    return trajectory_from_dict(data)


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as plain JSON values, from which `trajectory_from_dict` makes an equal one."""
    values: dict[str, Any] = json.loads(_to_json(trajectory))
    return values


def trajectory_from_dict(data: Mapping[str, Any]) -> Trajectory:
    """Make a trajectory from plain JSON values."""
    return _adapter().validate_python((data,))[0]


def _to_json(trajectory: Trajectory, exclude: Any = None) -> str:
    try:
        return _adapter().dump_json((trajectory,), exclude=exclude).decode()[1:-1]
    except PydanticSerializationError:  # a lone surrogate, which a policy may write into a call's JSON
        return json.dumps(_adapter().dump_python((trajectory,), exclude=exclude)[0])
