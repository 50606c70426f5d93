"""Rejections: increasing, jittered pauses between dials to a refusing peer."""

import itertools
import random

from gleaner.transport.rejections import FIRST_S, MAX_PEERS, MOST_S, Rejections
from gleaner.transport.wire import Peer

HEAD = Peer("tcp://10.0.0.1:7700", "key")


def dials(rejections: Rejections, seconds: float) -> list[float]:
    """The times at which a process dials that tries twenty times a second and is refused each time."""
    made: list[float] = []
    for tick in range(int(seconds * 20)):
        now_s = tick / 20
        if not rejections.holds_back(HEAD, now_s):
            made.append(now_s)
            rejections.rejected(HEAD, now_s)
    return made


def test_pauses_double_to_a_limit_with_jitter() -> None:
    one, other = (dials(Rejections(random.Random(seed).random), 600.0) for seed in (1, 2))
    assert 600.0 / MOST_S <= len(one) <= 10 + 2 * 600.0 / MOST_S
    assert max(after - before for before, after in itertools.pairwise(one)) <= MOST_S + 0.05
    assert one != other


def test_admitted_peer_is_redialled_at_once_when_lost() -> None:
    rejections = Rejections(lambda: 1.0)
    for _ in range(10):
        rejections.rejected(HEAD, 0.0)
    assert rejections.holds_back(HEAD, MOST_S - 0.1)
    rejections.admitted(HEAD)
    assert not rejections.holds_back(HEAD, 0.0)
    rejections.rejected(HEAD, 0.0)
    assert not rejections.holds_back(HEAD, FIRST_S)
    rejections.rejected(HEAD, FIRST_S)
    rejections.forget()
    assert not rejections.holds_back(HEAD, FIRST_S)


def test_rejection_memory_is_bounded() -> None:
    rejections = Rejections(lambda: 1.0)
    for number in range(MAX_PEERS + 1):
        rejections.rejected(Peer(f"tcp://10.0.0.1:{number}"), 0.0)
    assert not rejections.holds_back(Peer("tcp://10.0.0.1:0"), 0.0)
    assert rejections.holds_back(Peer(f"tcp://10.0.0.1:{MAX_PEERS}"), 0.0)
