"""The end-to-end tests share the `ale` command as a user types it, and a run file that is small enough for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.command_line import ale
from support.forked_command import forked_ale

__all__ = ["ALE", "FINISH", "REPOSITORY", "SCRIPTED", "TINY", "ale", "ale_in_a_process", "forked_ale", "summary_of"]

REPOSITORY = Path(__file__).parents[1]
ALE = Path(sys.executable).with_name("ale")
FINISH = '<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>'

TINY = """
name: tiny
run_dir: {runs}
model:
  scratch: {{hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, vocab_size: 400, max_length: 512}}
tasks: {{use: bash, families: [write, count]}}
engine: {{use: torch, threads: 1, max_batch: 8}}
trainer: {{use: torch, threads: 1}}
algorithm: {{use: ipa, group_size: 2}}
rollout: {{concurrency: 8, max_calls: 3, max_tokens: 24, max_context: 512}}
sft: {{demonstrations: {{count: 12, keep_failed: true}}, steps: 3, batch_size: 4}}
rl: {{steps: 2, prompts_per_step: 2}}
eval: {{episodes: 4, every: 1}}
"""

SCRIPTED = """
name: scripted
run_dir: {runs}
tasks: {{use: bash, families: [write, find]}}
engine: {{use: scripted, answers: [{finish}]}}
trainer: null
algorithm: {{use: ipa, group_size: 2}}
rl: {{steps: 2, prompts_per_step: 2}}
"""


def ale_in_a_process(
    *arguments: str | Path, cwd: Path | None = None, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end in a process of its own, where that is what is tested."""
    command = [str(ALE), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)


def summary_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """summary.json, whose path is the last line."""
    assert done.returncode == 0, done.stderr
    return dict(json.loads(Path(done.stdout.splitlines()[-1]).read_text()))
