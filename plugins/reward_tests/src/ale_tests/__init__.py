"""1 where the task's hidden test command passes in the agent's sandbox, else 0."""
