"""This sample is a trajectory made by hand, in which every field is set."""

from __future__ import annotations

from ale.messages import Message, ToolCall, ToolSpec
from ale.trajectory import Chunk, ChunkError, Observation, Score, Sequence, Trajectory


def build_trajectory(trajectory_id: str = "t0", reward: float = 1.0, **changes: object) -> Trajectory:
    """A two-chunk trajectory with everything filled in."""
    call = ToolCall("call_0_0", "shell", '{"command": "ls"}')
    messages = (
        Message("system", "You act."),
        Message("user", "dó it"),
        Message("assistant", "", (call,)),
        Message("tool", "a.txt", tool_call_id="call_0_0"),
        Message("assistant", "done"),
    )
    values: dict[str, object] = {
        "id": trajectory_id,
        "task_id": "count-1",
        "split": "train",
        "stage": "rl",
        "step": 1,
        "group": "1.0.count-1",
        "seed": 7,
        "policy_version": 3,
        "sequences": (Sequence((1, 2, 3, 4, 5, 6, 7), messages, (ToolSpec("shell", "Run."),)),),
        "chunks": (
            Chunk(
                0, 0, 2, 4, (-0.5, -0.1), (3, 3), "stop", True, ChunkError("execution_failed", "no such file"), turn=2
            ),
            Chunk(1, 0, 5, 7, (-0.2, -0.3), (3, 4), "length", turn=4),
        ),
        "observations": (Observation(0, "shell", {"command": "ls"}, "a.txt", 0, 0.01),),
        "reward": Score(reward, reward > 0, "ok"),
        "tags": ("count",),
        "timings": (("start", 0.1),),
        "started_at": 5.0,
        "seconds": 1.5,
    }
    return Trajectory(**{**values, **changes})  # type: ignore[arg-type]
