"""The projected peak of caches, against its definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.rollout.batches.cache_outlook import peak_tokens

requests = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 40)), max_size=12)


@given(requests)
def test_peak_of_caches_is_the_most_at_any_step(left: list[tuple[int, int]]) -> None:
    steps = range(1 + max((more for _, more in left), default=0))
    by_step = [sum(context + step for context, more in left if step <= more) for step in steps]
    context, more = (np.array([one[at] for one in left], np.float64) for at in (0, 1))
    assert peak_tokens(context, more) == max(by_step)
