"""Runs one OpenHands conversation to its end, inside the sandbox, with the Python of the agent's environment.

Its exit code is 0 if the agent finished, `TURNS_SPENT` if it used up its iterations, and 1 if it failed or got stuck.
"""

import json
import os
import sys

from openhands.sdk import LLM, Agent, Conversation, Tool  # type: ignore[import-not-found]
from openhands.sdk.conversation.state import ConversationExecutionStatus  # type: ignore[import-not-found]
from openhands.tools.file_editor import FileEditorTool  # type: ignore[import-not-found]
from openhands.tools.task_tracker import TaskTrackerTool  # type: ignore[import-not-found]
from openhands.tools.terminal import TerminalTool  # type: ignore[import-not-found]
from pydantic import SecretStr

KNOWN = {"terminal": TerminalTool, "file_editor": FileEditorTool, "task_tracker": TaskTrackerTool}
TURNS_SPENT = 3


def main() -> int:
    """Read what to do from the environment, and do it."""
    wanted = json.loads(os.environ["ALE_OPENHANDS"])
    llm = LLM(
        model=f"openai/{os.environ['ALE_MODEL']}",
        base_url=os.environ["ALE_BASE_URL"],
        api_key=SecretStr(os.environ["ALE_API_KEY"]),
        usage_id="agent",
        api_mode="chat",
        caching_prompt=False,
        num_retries=2,
        retry_min_wait=1,
        retry_max_wait=4,
        input_cost_per_token=0.0,
        output_cost_per_token=0.0,
    )
    agent = Agent(
        llm=llm,
        tools=[Tool(name=KNOWN[name].name) for name in wanted["tools"]],
        system_prompt_kwargs={"cli_mode": True},
        system_prompt=wanted["system_prompt"],
    )
    conversation = Conversation(
        agent=agent,
        workspace=os.getcwd(),
        max_iteration_per_run=wanted["max_iterations"],
        visualizer=None,
    )
    try:
        conversation.send_message(os.environ["ALE_TASK"])
        conversation.run()
        status = conversation.state.execution_status
        # The status only says that there was an error; an event of the conversation says which.
        spent = any(getattr(event, "code", None) == "MaxIterationsReached" for event in conversation.state.events)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        conversation.close()
    print(f"OpenHands: {status.value}")
    if status == ConversationExecutionStatus.FINISHED:
        return 0
    return TURNS_SPENT if spent else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of the libraries would keep running for a while
