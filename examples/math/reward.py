"""The reward of examples/math.yaml: 1 for the right number, a little less than 0 for a reply that is not one number."""

from __future__ import annotations


def score(completion: str, answer: str) -> float:
    """Judge one reply; `answer` is the column of that name in train.jsonl."""
    reply = completion.strip()
    if not reply.isdigit():
        return -0.1
    return float(reply == answer)
