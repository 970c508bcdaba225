"""Functions of a user's, for the kit: rewards, and a tool that uses the sandbox."""


def short(completion):
    return len(completion) < 10


def by_turn(trajectory):
    return [1.0 if chunk.index % 2 else -1.0 for chunk in trajectory.turns]


async def run(command: str, sandbox) -> str:
    """Run a command."""
    return (await sandbox.exec(command)).output
