"""The bench of pulls: real sockets, shares within a round, and its page."""

from pathlib import Path

import pytest

from bench.weights import pull, pull_page
from bench.weights.pull import Measured
from bench.weights.pull_pairs import IPERF, LIMIT, MOONCAKE, OURS, CannotRun, Way, open_pair

FOUND = [
    Measured(OURS, 1, [4.0, 3.0, 5.0], [0.5, 0.5, 0.4]),
    Measured(LIMIT, 1, [5.0, 5.0, 5.0], [0.3, 0.3, 0.3]),
    Measured(OURS, 2, [2.0], [0.5]),
    Measured(LIMIT, 2, [4.0], [0.3]),
    Measured(IPERF, 1, why_not="iperf3 is not installed"),
    Measured(MOONCAKE, 0, [1.0], [1.0]),
]


@pytest.mark.realprocess
def test_own_and_limit_transfers_move_and_verify_an_image() -> None:
    ways = (Way(OURS, 2), Way(LIMIT, 2))
    ours, limit = pull.measure(64, 1, ways)
    assert (len(ours.rates), len(limit.rates)) == (1, 1)
    assert min(*ours.rates, *limit.rates) > 0
    assert set(pull.shares([ours, limit])) == {2}


def test_share_is_median_over_rounds_against_same_round_limit() -> None:
    assert pull.shares(FOUND) == {1: 0.8, 2: 0.5}


def test_peer_without_environment_shows_how_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.weights.pull_pairs.ENVIRONMENTS", tmp_path)
    with pytest.raises(CannotRun, match="make bench-peers"):
        open_pair(Way(MOONCAKE, 0), tmp_path, tmp_path)


def test_page_shows_why_ways_failed_and_goals_met(tmp_path: Path) -> None:
    lines = pull_page.lines(FOUND)
    assert "| gleaner | 1 | 4.00 | 3.00 to 5.00 | 0.500 |" in lines
    assert "| iperf3 | 1 | iperf3 is not installed | - | - |" in lines
    assert "| 1 connection, every chunk hashed | 0.80 | 0.8 | met |" in lines
    assert "| 2 connections, every chunk hashed | 0.50 | 0.8 | NOT met |" in lines
    pull_page.draw(FOUND, tmp_path / "images" / "pull.png")
    assert (tmp_path / "images" / "pull.png").stat().st_size > 1000
