"""The arguments that a reward function can name.

1. The usual form has one episode: `prompt`, `completion`, `task`, `trajectory`, ..., and the columns of the task's row
   (`answer`) under their names. Functions of verifiers have it, too; they want messages (`completion_as: messages`).
   Those of verl name `solution_str` and `ground_truth`: the reply's text, and the column `answer`.
2. Thoughts are part of a completion's text, as they are in what TRL, verl and verifiers pass: the model wrote them, and
   a function may judge them. `reply` is the last reply's text without them.
3. A function that names `prompts` or `completions` is called as TRL does: everything is a list, here of length one.
"""

from __future__ import annotations

from typing import Any, Literal

from ale.messages import Message
from ale.registry.user_functions import UserFunction
from ale.task import Task
from ale.trajectory import Chunk, Sequence, Trajectory
from ale_rewards.conversation import read_conversation

CompletionForm = Literal["text", "messages"]
PLURALS = {"prompt": "prompts", "completion": "completions"}


def is_batched(function: UserFunction) -> bool:
    """Return whether a function wants lists of episodes, as TRL calls it."""
    return any(function.names(name) for name in PLURALS.values())


def offer_arguments(task: Task, trajectory: Trajectory, form: CompletionForm) -> dict[str, Any]:
    """Return all arguments of the usual form. The names of ALE come before columns of the same name, which are still in
    `metadata`."""
    talk = read_conversation(task, trajectory)
    as_text = form == "text"
    prompt = task.instruction if as_text else _as_dicts(talk.prompt)
    completion = talk.whole_reply if as_text else _as_dicts(talk.with_thoughts)
    info = task.metadata.get("info")
    info = info if isinstance(info, dict) else dict(task.metadata)
    episode = {
        "prompt": prompt,
        "completion": completion,
        "messages": _as_dicts((*talk.prompt, *talk.with_thoughts)),
        "info": info,
        "task": task,
    }
    state = {**task.metadata, **episode, "turn": len(trajectory.turns)}
    of_verl: dict[str, Any] = {"solution_str": talk.whole_reply, "reply": talk.reply}
    if "answer" in task.metadata:
        of_verl["ground_truth"] = task.metadata["answer"]
    tokens = _token_ids(trajectory)
    own = {"state": state, "trajectory": trajectory, "metadata": dict(task.metadata)}
    return {**of_verl, **tokens, **task.metadata, **episode, **own}


def _token_ids(trajectory: Trajectory) -> dict[str, list[int]]:
    """Return the token ids of the last reply and of its prompt, as TRL names them."""
    if not trajectory.turns:
        return {}
    last = trajectory.turns[-1]
    ids = trajectory.sequences[last.sequence].token_ids
    return {"prompt_ids": list(ids[: last.start]), "completion_ids": list(ids[last.start : last.end])}


def before_episode(task: Task) -> Trajectory:
    """Return an episode of the task with one empty reply: with it all arguments have their names."""
    chunk = Chunk(0, 0, 0, 0, (), (), "stop", turn=1)
    sequence = Sequence((), (Message("user", task.instruction), Message("assistant", "")))
    return Trajectory("", task.id, "", "", 0, "", 0, 0, (sequence,), (chunk,))


def as_batch(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as TRL passes them: lists of one, and `prompts` and `completions` for the two."""
    return {PLURALS.get(name, name): [value] for name, value in arguments.items()}


def _as_dicts(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    return [message.to_openai() for message in messages]
