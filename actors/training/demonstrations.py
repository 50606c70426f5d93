"""Demonstrations for the warm start: answers of an often careless teacher.

Owns the texts of the demonstrations. Does not own problems, tokens or training. Pure.

A careful demonstration shows its work between `<think>` tags, then answers. A careless one answers at once,
and wrongly. A model that imitates both is sometimes right; RL has to find that showing the work pays.
"""

from __future__ import annotations

from random import Random

from gleaner.actors.reward.source import TextProblem

CAREFUL = 0.35
"""Share of careful demonstrations: enough to learn the work from in a few hundred steps, and far from one."""


def demonstrate(task: str, problem: TextProblem, rng: Random) -> str:
    """One demonstration of a solution. Tasks without a known way to show work get their plain answer."""
    if task != "spell_backward":
        return f"<answer>{problem.answer}</answer>"
    word = problem.answer[::-1]
    if rng.random() < CAREFUL:
        return f"<think>{spelling(word)}</think><answer>{problem.answer}</answer>"
    return f"<answer>{word}</answer>"


def spelling(word: str) -> str:
    """The work for spelling a word backward: its letters numbered, then from the last to the first.

    `sun` becomes `0s1u2n>2n1u0s`: each letter of the second half is found by its number.
    """
    numbered = [f"{place % 10}{letter}" for place, letter in enumerate(word)]
    return "".join(numbered) + ">" + "".join(reversed(numbered))
