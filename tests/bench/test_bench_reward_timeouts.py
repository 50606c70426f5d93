"""The model of adaptive timeouts: rounds as RollPacker draws them, and what a timeout ends in them."""

import math
import random

import pytest

from bench.reward.timeouts import Case, cell
from gleaner.actors.reward.timeouts import AdaptiveTimeouts
from gleaner.configs.schema import Timeouts
from gleaner.sim.rewards.code_rounds import Program, Round, RoundLaw, Workers, rounds

SMALL = RoundLaw(prompts=16, samples=4, runaways=0.1)


def adaptive(workers: int, audit_share: float = 0.0) -> tuple[Workers, AdaptiveTimeouts]:
    timeouts = AdaptiveTimeouts(Timeouts(audit_share=audit_share), random.Random(1))
    return Workers(workers, 30.0, timeouts), timeouts


def test_every_fifth_round_is_of_the_prompts_that_were_deferred() -> None:
    drawn = list(rounds(SMALL, 10, seed=1))
    long = [
        sum(drawn[at].rollout_s for at in part) / len(part) for part in ((4, 9), (0, 1, 2, 3, 5, 6, 7, 8))
    ]
    assert long[0] > 1.3 * long[1]
    for one in drawn:
        assert sum(program.trained for program in one.programs) == 16 * 4
        assert one.programs == sorted(one.programs)
        assert max(program.arrival_s for program in one.programs if program.trained) == one.rollout_s
    share = sum(math.isinf(program.takes_s) for one in drawn for program in one.programs)
    assert 0.04 < share / sum(len(one.programs) for one in drawn) < 0.2
    assert list(rounds(SMALL, 2, seed=1)) == drawn[:2]


def test_program_without_end_waits_for_the_right_one_of_its_problem() -> None:
    right = Program(1.0, "a", 2.0, right=True, trained=True)
    endless = Program(10.0, "a", math.inf, right=False, trained=True)
    other = Program(10.0, "b", math.inf, right=False, trained=True)
    workers, timeouts = adaptive(2)
    workers.score(Round(10.0, [right, endless]))
    workers.score(Round(10.0, [other]))
    assert workers.scored.complete_s == [13.0, 40.0], "1.5 times 2 s; 30 s where nothing is known"
    assert dict(timeouts.anchors_s()) == {"a": (2.0,)}


def test_right_program_beyond_its_limit_is_cut_until_an_audit() -> None:
    quick = Program(1.0, "a", 1.0, right=True, trained=True)
    slow = Program(5.0, "a", 8.0, right=True, trained=True)
    for audit_share, limit_s in ((0.0, 2.0), (1.0, 12.0)):
        workers, timeouts = adaptive(2, audit_share)
        workers.score(Round(10.0, [quick, slow]))
        assert workers.scored.complete_s == [10.0], "the audit runs behind the verdict"
        assert (workers.scored.right, workers.scored.right_cut) == (2, 1)
        assert timeouts.limits("a").of(1) == [limit_s]


def test_program_that_no_round_waits_for_is_cancelled_with_it() -> None:
    endless = Program(1.0, "a", math.inf, right=False, trained=False)
    last = Program(9.0, "b", 0.5, right=True, trained=True)
    workers = Workers(1, 30.0)
    workers.score(Round(9.0, [endless, last]))
    assert workers.scored.complete_s == [9.5]


@pytest.mark.parametrize("workers", [2, 64])
def test_adaptive_timeouts_help_most_where_every_anchor_is_known(workers: int) -> None:
    unknown, known = (cell(Case(SMALL, known=known), workers, [1], count=5) for known in (False, True))
    assert known.fixed_s.values == unknown.fixed_s.values
    assert known.ratio.values[0] > unknown.ratio.values[0] > 1.0
    assert known.right_cut.values == [0.0]
