"""Turn three dials, one after the other, each to the opposite of what it shows: `dials`.

Seven turns with three crucial forks: each dial is looked at, then turned, and stays as it was turned. Nothing says
whether a turn was right; one that was not has spoilt the task, and the way goes on all the same. No two dials of a task show
the same, so that no single habit of a policy takes several forks at once.
"""

from __future__ import annotations

import random

from ale_bash.family import Demonstration, Facts, Instance, LongFamily, holds, shell

PAIRS = (("north", "south"), ("east", "west"), ("up", "down"), ("left", "right"))
OPPOSITE = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
DIALS_A_TASK = 3
COPY_SHARE = 0.94
"""Share of wrong turns that go to the word which the dial shows; the others are spread over what is left.

A small policy learns from such demonstrations that "any other word" is rare, not which of them is never right, so it takes
a fork right about as often as it turns to one of those. With a rate of 0.99 both are one in a hundred."""

LOOK = """n=$(($(wc -l < turned) + 1))
[ $n -le 3 ] && echo dial $n shows $(sed -n ${n}p signs) || echo no dial is left
"""
TURN = """[ $(wc -l < turned) -lt 3 ] && echo $1 >> turned && echo turned || echo no dial is left
"""


def make(rng: random.Random) -> Instance:
    """Three different signs; what the dials were turned to stands in a file of its own."""
    signs = rng.sample(list(OPPOSITE), DIALS_A_TASK)
    wanted = [OPPOSITE[sign] for sign in signs]
    text = rng.choice((
        "Turn the three dials: look.sh shows one, turn.sh turns it to the opposite.",
        "There are three dials. Turn each to the opposite of what look.sh shows, with turn.sh.",
        "With look.sh see what a dial shows, with turn.sh turn it to the opposite; there are three dials.",
    ))  # fmt: skip
    files = {"signs": "".join(f"{sign}\n" for sign in signs), "look.sh": LOOK, "turn.sh": TURN, "turned": ""}
    solution = "\n".join(f"sh turn.sh {word}" for word in wanted)
    return Instance(text, files, holds("turned", " ".join(wanted)), solution, {})


def show(facts: Facts, rng: random.Random, wrong_rate: float) -> Demonstration:
    """Look and turn, three times; at each dial by itself the turn is wrong with `wrong_rate`."""
    for _ in range(DIALS_A_TASK):
        sign = (yield shell("sh look.sh")).split()[-1]
        right = OPPOSITE.get(sign)
        if right is None:
            return
        word = right
        if rng.random() < wrong_rate:
            others = [other for other in OPPOSITE if other not in (sign, right)]
            word = sign if rng.random() < COPY_SHARE else rng.choice(others)
        yield shell(f"sh turn.sh {word}")


DIALS = LongFamily("dials", make, show)
