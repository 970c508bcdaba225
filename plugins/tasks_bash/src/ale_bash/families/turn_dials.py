"""Turn three dials, one after the other, each to the opposite of what it shows: `dials`.

A task takes seven calls and has three crucial forks: the agent looks at each dial, then turns it, and cannot turn it
again. Nothing says whether a turn was right; a wrong turn fails the task, but the agent can go on. No two dials of a
task show the same word, so that one habit of a policy cannot solve several forks at once."""

from __future__ import annotations

import random

from ale_bash.family import Demonstration, Facts, Instance, LongFamily, content_test, shell_call

PAIRS = (("north", "south"), ("east", "west"), ("up", "down"), ("left", "right"))
OPPOSITE = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
DIALS_A_TASK = 3
COPY_SHARE = 0.94
"""The share of wrong turns that go to the word which the dial shows; the others go to one of the remaining words.

A small policy learns from such demonstrations that "any other word" is rare, but not which word is right, so it turns a
dial right about as often as it turns to one of the remaining words. With a rate of 0.99 both are one in a hundred."""

LOOK = """n=$(($(wc -l < turned) + 1))
[ $n -le 3 ] && echo dial $n shows $(sed -n ${n}p signs) || echo no dial is left
"""
TURN = """[ $(wc -l < turned) -lt 3 ] && echo $1 >> turned && echo turned || echo no dial is left
"""


def make_instance(rng: random.Random) -> Instance:
    """A task with three different signs; the file `turned` records what the dials were turned to."""
    signs = rng.sample(list(OPPOSITE), DIALS_A_TASK)
    wanted = [OPPOSITE[sign] for sign in signs]
    text = rng.choice(
        (
            "Turn the three dials: look.sh shows one, turn.sh turns it to the opposite.",
            "There are three dials. Turn each to the opposite of what look.sh shows, with turn.sh.",
            "With look.sh see what a dial shows, with turn.sh turn it to the opposite; there are three dials.",
        )
    )
    files = {"signs": "".join(f"{sign}\n" for sign in signs), "look.sh": LOOK, "turn.sh": TURN, "turned": ""}
    solution = "\n".join(f"sh turn.sh {word}" for word in wanted)
    return Instance(text, files, content_test("turned", " ".join(wanted)), solution, {})


def demonstrate(facts: Facts, rng: random.Random, wrong_rate: float) -> Demonstration:
    """Look at each dial and turn it; each turn is wrong with probability `wrong_rate`."""
    for _ in range(DIALS_A_TASK):
        sign = (yield shell_call("sh look.sh")).split()[-1]
        right = OPPOSITE.get(sign)
        if right is None:
            return
        word = right
        if rng.random() < wrong_rate:
            others = [other for other in OPPOSITE if other not in (sign, right)]
            word = sign if rng.random() < COPY_SHARE else rng.choice(others)
        yield shell_call(f"sh turn.sh {word}")


DIALS = LongFamily("dials", make_instance, demonstrate)
