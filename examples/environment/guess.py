"""An environment: the model guesses a number from 1 to 8 in three guesses, and hears 'higher' or 'lower'.

Nothing of ALE is imported here: `reset(seed)` returns what the model is shown first, `step(action)` returns
`(observation, reward, done)`. `expert(rng)` shows how it is done, with wrong turns; without it there are no
demonstrations, and a run begins with a model that can already play.
"""

import random

NUMBERS, GUESSES = 8, 3


class GuessTheNumber:
    """One game at a time."""

    def reset(self, seed):
        """Think of a number."""
        self.number = random.Random(seed).randint(1, NUMBERS)
        self.low, self.high, self.guesses = 1, NUMBERS, 0
        return f"Guess a number from 1 to {NUMBERS}."

    def step(self, action):
        """Answer a guess: 1 for the number itself, a little less for each guess before it."""
        self.guesses += 1
        word = action.strip()
        guess = int(word) if word.isdecimal() else 0
        if guess == self.number:
            return "Yes.", 1.0, True
        if guess < self.number:
            self.low, hint = max(self.low, guess + 1), "higher"
        else:
            self.high, hint = min(self.high, guess - 1), "lower"
        return f"{hint}.", 0.0, self.guesses == GUESSES

    def expert(self, rng):
        """Halve what is left; in half of the turns guess anything."""
        if rng.random() < 0.5:
            return str(rng.randint(1, NUMBERS))
        return str((self.low + self.high) // 2)
