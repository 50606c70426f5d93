"""Mean length of launched responses, of which some were aborted."""

import random

import pytest

from gleaner.actors.training.length_law import mean_length, total
from gleaner.actors.training.round_end import MOST_LENGTHS, joined


def test_mean_length_is_the_mean_when_nothing_was_aborted() -> None:
    assert mean_length([(2, 3), (10, 1)], []) == pytest.approx(4.0)
    assert mean_length([], [(5, 1)]) is None


def test_mean_length_is_right_when_responses_are_cut_off_at_random() -> None:
    rng = random.Random(1)
    lengths = [1 + int(rng.expovariate(1 / 40)) for _ in range(20_000)]
    cuts = [1 + int(rng.expovariate(1 / 60)) for _ in lengths]
    ended = [(length, 1) for length, cut in zip(lengths, cuts, strict=True) if length <= cut]
    aborted = [(cut, 1) for length, cut in zip(lengths, cuts, strict=True) if length > cut]
    true = sum(lengths) / len(lengths)
    naive = total(ended)[0] / len(ended)
    found = mean_length(ended, aborted)
    assert found == pytest.approx(true, rel=0.05)
    assert naive < 0.7 * true, "nothing was cut off: this shows nothing"


def test_joined_lengths_keep_the_number_of_responses_and_nearly_their_sum() -> None:
    lengths = [(tokens, 1 + tokens % 3) for tokens in range(1, 500)]
    found = joined(lengths)
    assert len(found) <= MOST_LENGTHS
    assert total(found)[1] == total(lengths)[1]
    assert total(found)[0] == pytest.approx(total(lengths)[0], rel=0.01)
