"""The runner, with a stand-in for the SDK: its exit codes are those that the scaffold reads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from ale.specs.driver import DriverContext
from ale.specs.sandbox import ExecResult
from ale_endpoint.agents import AgentVariables
from ale_openhands import OpenHands
from ale_testing.fake_sandboxes import FolderSandbox

MODULES = (
    "openhands",
    "openhands.sdk",
    "openhands.sdk.conversation",
    "openhands.sdk.conversation.state",
    "openhands.tools",
    "openhands.tools.file_editor",
    "openhands.tools.task_tracker",
    "openhands.tools.terminal",
)
STAND_IN = """
import os, sys, types
from enum import Enum

class Status(Enum):
    FINISHED, ERROR, STUCK = "finished", "error", "stuck"

class Anything:
    name = "x"
    def __init__(self, *a, **k): pass

class Conversation:
    def __init__(self, **settings):
        self.status, *codes = os.environ["ENDS_AS"].split()
        self.codes = codes
    def send_message(self, text): pass
    def run(self):
        if self.status == "raises":
            raise RuntimeError("lost")
        events = [types.SimpleNamespace(), *(types.SimpleNamespace(code=code) for code in self.codes)]
        self.state = types.SimpleNamespace(execution_status=Status(self.status), events=events)
    def close(self): pass

for module in MODULES:
    stand_in = sys.modules[module] = types.ModuleType(module)
    stand_in.__dict__.update(dict.fromkeys(
        ("LLM", "Agent", "Tool", "FileEditorTool", "TaskTrackerTool", "TerminalTool"), Anything
    ), Conversation=Conversation, ConversationExecutionStatus=Status)
"""


@pytest.mark.parametrize(
    ("ends_as", "ended"),
    [
        ("finished", "finish"),
        ("error MaxIterationsReached", "max_turns"),
        ("error LLMAuthenticationError", "agent_error"),
        ("stuck", "agent_error"),
        ("raises", "agent_error"),
    ],
)
async def test_how_the_conversation_ended_is_told(ends_as: str, ended: str, tmp_path: Path) -> None:
    agent = OpenHands(OpenHands.Config(), DriverContext())
    line = AgentVariables("A task.", "http://127.0.0.1:8600/v1", "key-1")
    launch = agent.launch(line)
    program = f"MODULES = {MODULES}\n{STAND_IN}\n{files('ale_openhands').joinpath('runner.py').read_text()}"
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-"],
        input=program,
        env={**os.environ, **line.variables, **launch.env, "ENDS_AS": ends_as},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    async with FolderSandbox() as box:
        result = ExecResult(done.returncode, done.stdout.encode(), done.stderr.encode(), 1.0)
        assert await agent.end_reason(result, box) == ended, done.stderr
