"""An environment for the kit: count to three, one or two at a time."""


class Counting:
    """Actions are numbers, and their rewards are as large; past three nothing is won."""

    def reset(self, seed):
        self.total = seed % 2
        return f"The count is {self.total}."

    def step(self, action):
        added = int(action) if action in ("1", "2") else 0
        self.total += added
        reward = float(added) if self.total <= 3 else -1.0
        return f"The count is {self.total}.", reward, self.total >= 3

    def expert(self, rng):
        return f"<act>{min(rng.choice([1, 2]), 3 - self.total)}</act>"
