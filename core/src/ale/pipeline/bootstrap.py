"""Where the policy comes from.

- `model.path`: a Hugging Face folder, taken as it is.
- `model.scratch`: demonstrations are run first, in sandboxes; a tokenizer is trained on their text, a small decoder
  gets random weights. No text but the task source's own is involved.
- neither: the engine needs no model (a scripted one); the endpoint counts bytes as tokens.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ale.endpoint.recorder import Recorder
from ale.endpoint.reply_form import ReplyForm
from ale.endpoint.tokenizer import ChatTokenizer, train_tokenizer
from ale.errors import AleError, ConfigError
from ale.pipeline.workbench import Workbench
from ale.rollout.episode import DEMONSTRATIONS_STAGE, Stage
from ale.specs.algorithm import RolloutRequest
from ale.task import TRAIN
from ale.trajectory import Trajectory


async def demonstrate(bench: Workbench, count: int) -> list[Trajectory]:
    """Run `count` demonstrations; every command is really executed, every reward really computed."""
    requests, responders = [], []
    tasks = bench.take_tasks(TRAIN)
    for i in range(count):
        task = next(tasks)
        seed = bench.config.seed * 1_000_003 + i
        responder = bench.tasks.demonstrator(task, seed)
        if responder is None:
            raise ConfigError(
                f"The task source '{bench.config.tasks.use}' has no demonstrator for the task '{task.id}'; "
                "leave out 'sft' and start from a trained model (model.path), or use a task source that has one."
            )
        requests.append(RolloutRequest(task, f"demo.{i}", seed))
        responders.append(responder)
    bench.progress.stage("demonstrations", count)
    with bench.timed("demonstrations"):
        done = await bench.rollouts.run(requests, Stage(DEMONSTRATIONS_STAGE, 0, TRAIN, 1.0), responders)
    if not done:
        raise AleError(
            f"No demonstration could be run: {bench.store.reasons(DEMONSTRATIONS_STAGE, 0)}. The trajectories of the run say more."
        )
    return done


async def scratch_model(bench: Workbench, demonstrations: list[Trajectory]) -> Path:
    """Train a tokenizer on the demonstrations and make a model with random weights; returns its folder."""
    scratch = bench.config.model.scratch
    assert scratch is not None
    folder = bench.folder / "model" / "initial"
    with bench.timed("model"):
        old = bench.endpoint.tokenizer
        texts = [old.decode(s.token_ids) for t in demonstrations for s in t.sequences]
        tokenizer = train_tokenizer(texts, scratch.vocab_size)
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(folder)
        await bench.backend.create_model(scratch, folder)
    return folder


async def load_model(bench: Workbench, folder: Path, *, train: bool) -> None:
    """Make the folder the policy everywhere."""
    with bench.timed("model"):
        await bench.use_model(folder, ChatTokenizer.load(folder))
        if train:
            await bench.backend.load_model(folder)


def retokenize(trajectory: Trajectory, tokenizer: ChatTokenizer, form: ReplyForm | None = None) -> Trajectory:
    """The same demonstration in another vocabulary, recorded the way the policy's own rollouts are.

    Replies and their errors stay; the token ids are those that the endpoint would have shown to the policy.
    """
    recorder = Recorder(tokenizer, form)
    for chunk in trajectory.chunks:
        sequence, turn = trajectory.sequences[chunk.sequence], chunk.turn
        prompt = recorder.prompt(sequence.messages[:turn], sequence.tools)
        made = recorder.add_given(prompt, sequence.messages[turn], finish_reason=chunk.finish_reason)
        if chunk.error is not None:
            recorder.mark_error(made.index, chunk.error)
    chunks = tuple(replace(c, side=old.side) for c, old in zip(recorder.chunks, trajectory.chunks, strict=True))
    return replace(trajectory, sequences=recorder.sequences, chunks=chunks)
