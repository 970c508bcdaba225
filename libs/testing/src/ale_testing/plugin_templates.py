"""What the template of each kind of package is about; the files are in `templates/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ale.specs.kinds import ALL_KINDS, HOOKS

TEMPLATES = Path(__file__).parent / "templates"
ENVIRONMENT = "environment"
"""A package of three kinds around an environment with `reset` and `step`."""
NEW_KINDS = (*ALL_KINDS, ENVIRONMENT)
"""What `ale plugins new` can write."""
PARTS = {ENVIRONMENT: ("tasks", "scaffold", "reward")}
"""The kinds of plugin in a package of several."""


@dataclass(frozen=True)
class Template:
    """What the template of a kind is about. `summary` and `limits` describe the template's own small plugin, so neither
    may be left in a published package (`template_leftovers.py`)."""

    summary: str
    yaml: str
    limits: str
    needs: tuple[str, ...] = ()
    """What its packages depend on besides."""
    suites: tuple[str, ...] = ()
    """Suites of the kit beside the kind's first one."""
    tested_with: tuple[str, ...] = ()


ABOUT = {
    "sandbox": Template(
        "Sandboxes that are temporary folders, without any isolation.",
        "sandbox: {name}\nneeds: {{network: full}}   # it cannot cut the network, so a run must say that it need not",
        "it isolates nothing: commands run as this user, on this machine, with its network.",
        needs=("ale-sandbox>=0.1,<0.2",),
        suites=("sandbox_claims", "sandbox_lifetime"),
    ),
    "engine": Template(
        "Samples tokens without a model, each as likely as the next.",
        "engine: {name}",
        "it learns nothing: weights are noted by their version and not used.",
    ),
    "trainer": Template(
        "One process, one sequence at a time, AdamW.",
        "trainer: {{use: {name}, lr: 1e-4}}",
        "slow: nothing is batched, and while it computes nothing else goes on.",
        needs=("torch>=2.5", "transformers>=5.0,<6"),
        suites=("trainer_policies",),
    ),
    "algorithm": Template(
        "REINFORCE with the group's mean as baseline.",
        "algorithm: {{use: {name}, group_size: 4}}",
        "on-policy: nothing corrects for rollouts of an older policy.",
        needs=("ale-torch>=0.1,<0.2", "ale-train>=0.1,<0.2"),
        suites=("algorithm_loss",),
    ),
    "scaffold": Template(
        "One shell tool and a loop.",
        "scaffold: {{use: {name}, max_turns: 8}}",
        "one tool, no memory.",
        suites=("scaffold_episodes",),
    ),
    "reward": Template(
        "1 where the task's tests pass, less a price for each model call.",
        "reward: {{use: {name}, price: 0.05}}",
        "where the sandbox has one user for all, what the agent left running was ended but its files are trusted.",
        suites=("reward_episodes", "reward_hidden_tests"),
    ),
    "tasks": Template("Asks for a word in a file.", "tasks: {name}", "five tasks."),
    "tool_format": Template(
        "Tool calls as lines that begin with a word.",
        "session: {{tool_format: {name}}}",
        "a line of prose that begins with the word is taken for a call.",
    ),
    "cluster": Template(
        "Leaves all parts of a run in the run's own process.",
        "cluster: {name}",
        "it has no nodes, so a run is as fast as without it.",
        tested_with=("ale-core[quickstart]",),
    ),
    HOOKS: Template("Writes a line a step.", "observers: [{name}]", "numbers that are not finite are written as NaN."),
    ENVIRONMENT: Template(
        "Guessing a number, as an environment with reset and step.",
        "tasks: {name}\nscaffold: {name}\nreward: {name}\nsandbox: none   # it runs in a process of its own",
        "one game, with numbers from 1 to 8.",
        needs=("ale-plugin-env-loop>=0.1,<0.2", "ale-plugin-rewards>=0.1,<0.2"),
        tested_with=("ale-engines", "ale-train"),
    ),
}
