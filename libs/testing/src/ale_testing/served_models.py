"""Compares a server with transformers over many small models, which one program serves one after the other.

The program is the test's own (`many_models.py` of a plugin), run by the server's Python in the loop `forked_cases`: it
imports the server once, so that a model takes a second and not the ten of a server's start."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale_testing import forked_cases
from ale_testing.model_shapes import LONG, VOCABULARY, true_logprobs

MAX_TOKENS = 12


@dataclass(frozen=True)
class Served:
    """What a server did with the weights of one folder."""

    folder: Path
    far: float
    """The largest difference of a log-probability from transformers."""
    fingerprint: Mapping[str, Any]
    """What it holds, as its worker says it: for each tensor its shape, sum and moments."""


class ManyModels:
    """The program, while it runs."""

    def __init__(self, process: subprocess.Popen[str], work: Path) -> None:
        self._process = process
        self._answer = work / "answer.json"

    def serve(self, folders: Sequence[Path], max_context: int, **more: Any) -> list[Served]:
        """Start with the model in the first folder, and load the others as updates. Raises `RuntimeError` with the
        server's reason if it does not."""
        rows = [length for length in (5, 20, LONG, 150) if length + MAX_TOKENS <= max_context]
        prompts = [[(17 * at * at + 5 * at + length) % (VOCABULARY - 3) + 3 for at in range(length)] for length in rows]
        case = {"folders": list(map(str, folders)), "prompts": prompts, "max_tokens": MAX_TOKENS, **more}
        case |= {"max_context": max_context, "answer": str(self._answer)}
        self._answer.unlink(missing_ok=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(case), file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n", "the program that serves models has ended"
        if not self._answer.exists():
            raise RuntimeError("the model ended the server")
        answers = json.loads(self._answer.read_text())
        if "error" in answers:
            raise RuntimeError(answers["error"])
        return [
            Served(folder, max(map(_compare, [folder] * len(prompts), prompts, tokens, logprobs)), held)
            for folder, (tokens, logprobs, held) in zip(folders, answers, strict=True)
        ]


def _compare(folder: Path, prompt: list[int], tokens: list[int], logprobs: list[float]) -> float:
    wanted = true_logprobs(folder, [*prompt, *tokens])[len(prompt) - 1 :]
    return max(abs(one - other) for one, other in zip(wanted, logprobs, strict=True))


@contextmanager
def many_models(
    python: Path, program: Sequence[str], environment: Mapping[str, str], work: Path
) -> Iterator[ManyModels]:
    """Run a program, a file with its arguments, by the server's Python in the folder `work`, where its log is."""
    argv = [str(python), forked_cases.__file__, *program]
    with (
        (work / "log").open("w") as log,
        subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=work, env=dict(environment)
        ) as process,
    ):
        yield ManyModels(process, work)
        assert process.stdin is not None
        process.stdin.close()
