"""How many groups a short round launches beside those that count, by prediction."""

import pytest

from gleaner.actors.cluster.round_parts import Groups
from gleaner.actors.cluster.round_surplus import best_surplus, least_surplus, period_s, whole_groups
from gleaner.actors.protocol.step_times import RoundKinds

LIMIT, GROUPS = 1000, 128
GRID = [16, 32, 48, 64, 96, 128]


def whole(hard: int) -> Groups:
    """A hundred groups, so many of which run to the limit."""
    return [[number, 100 + number] for number in range(100 - hard)] + [[50, LIMIT]] * hard


def longest(groups: Groups, surplus: int) -> float:
    """Seconds of a step on as many engines as there are requests."""
    return float(max(map(max, groups)))


def kinds(surplus: int = 32, *, done: str = "plain", surpluses: list[int] | None = None) -> RoundKinds:
    return RoundKinds(
        done=done, ahead="short", shorts=GROUPS / surplus, surplus=surplus, surpluses=surpluses or GRID
    )


@pytest.mark.parametrize(
    ("hard", "surplus"), [(0, 16), (2, 16), (5, 16), (10, 32), (20, 48), (30, 64), (33, 96), (90, 128)]
)
def test_least_surplus_holds_the_long_groups_and_a_standard_deviation(hard: int, surplus: int) -> None:
    assert least_surplus(whole(hard), GROUPS, LIMIT, GRID) == surplus


@pytest.mark.parametrize(("hard", "surplus"), [(2, 16), (10, 32), (20, 48), (30, 64)])
def test_best_surplus_is_the_least_that_makes_short_rounds_short(hard: int, surplus: int) -> None:
    found, seconds = best_surplus(whole(hard), kinds(), GROUPS, LIMIT, longest)
    assert found == surplus
    share = surplus / (GROUPS + surplus)
    assert seconds < LIMIT * share + 200 * (1 - share)


def test_surplus_that_is_too_small_by_chance_is_predicted_to_be_slower() -> None:
    assert period_s(whole(19), GROUPS, 32, longest) > period_s(whole(19), GROUPS, 48, longest)
    assert period_s(whole(10), GROUPS, 32, longest) < period_s(whole(10), GROUPS, 48, longest)


def test_surplus_stays_while_no_other_is_clearly_shorter() -> None:
    flat = [[100, 101]] * 100
    for surplus in GRID:
        found, _ = best_surplus(flat, kinds(surplus), GROUPS, LIMIT, longest)
        assert found == surplus


def test_surplus_moves_towards_the_best_as_far_as_it_may() -> None:
    found, _ = best_surplus(whole(30), kinds(surpluses=[16, 32, 48]), GROUPS, LIMIT, longest)
    assert found == 48


def test_whole_steps_of_a_period_follow_from_its_short_and_its_long_round() -> None:
    short: list[Groups] = [[[1, 10 * step + number] for number in range(4)] for step in range(4)]
    earlier: list[Groups] = [[[7, 900]] * 4]
    long: list[Groups] = [[[5, 100 + number] for number in range(4)]]
    found = whole_groups({"short": [*earlier, *short], "long": [*earlier, *long]}, kinds(done="long"))
    assert found == [*(group for step in short for group in step), *long[0]], "only of the newest period"
    assert whole_groups({"short": short}, kinds(done="short")) == []
    assert whole_groups({"plain": [long[0], short[0]]}, kinds()) == [*short[0], *long[0]]
