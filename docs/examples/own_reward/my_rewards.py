"""A reward function: the last number of a response is its answer, and short responses are worth more."""

import re

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
LONG = 200
"""Characters from which on a right answer is worth half."""


def score(response: str, answer: str) -> dict[str, float]:
    """`score` is what the response is worth; the other numbers are shown beside it."""
    numbers = NUMBER.findall(response)
    right = bool(numbers) and float(numbers[-1]) == float(answer)
    brevity = max(0.5, 1 - len(response) / (2 * LONG))
    return {"score": right * brevity, "right": right, "brevity": brevity}
