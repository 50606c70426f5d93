"""Length race: the decision in arrays is that of the race, group by group."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.actors.rollout.state.group_policy import Rule, Standing
from gleaner.actors.rollout.state.length_race import Lengths, decide_lengths
from gleaner.actors.rollout.state.race import Entrant, decide_race, keys_to_pass

STANDINGS = (Standing.OPEN, Standing.VARIED, Standing.KEPT, Standing.DROPPED, Standing.ABORTED)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32))
def test_decision_by_lengths_is_that_of_the_race(seed: int) -> None:
    """Of any standings, with equal keys and groups that were kept before they were closed."""
    rng = random.Random(seed)
    entrants = [
        Entrant(number, rng.randint(0, 8), rng.random() < 0.6, rng.choice(STANDINGS))
        for number in range(rng.randint(1, 14))
    ]
    rule = Rule(wanted := rng.randint(1, 8), wanted + rng.randint(0, 6))
    lengths = Lengths(np.array([one.tokens for one in entrants]), np.array([one.closed for one in entrants]))
    kept, dropped, aborted = (
        [one.number for one in entrants if one.standing is standing] for standing in STANDINGS[2:]
    )
    decision = decide_race(rule, entrants)
    assert decide_lengths(rule, lengths, kept, dropped, aborted) == (
        decision,
        keys_to_pass(rule, entrants, decision),
    )


def test_race_without_groups_wants_the_most_that_may_be_added() -> None:
    none = Lengths(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_))
    decision, to_pass = decide_lengths(Rule(3, 3), none, (), (), ())
    assert (decision.add, decision.keep, decision.abort, to_pass) == (3, (), (), [])
