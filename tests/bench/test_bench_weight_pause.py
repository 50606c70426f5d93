"""The bench of pauses: figures from token times, and one tiny measured cluster."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from bench.weights.pause import page
from bench.weights.pause.flips import Flip, Times
from bench.weights.pause.joiners import Join
from bench.weights.pause.load import Load
from bench.weights.pause.measurement import Sizes, measure
from bench.weights.pause.timeline import Timeline
from bench.weights.pause.versions import GIB, TINY, Layout, first, following


def two_requests() -> Timeline:
    timeline = Timeline()
    for at_s, request, version in (
        (1.0, "a", "1"),
        (1.1, "b", "1"),
        (2.0, "a", "1"),
        (2.1, "b", "1"),
        (5.0, "b", "2"),
        (6.0, "a", "2"),
        (6.5, "c", "2"),
        (7.0, "a", "2"),
    ):
        timeline.add(at_s, request, 2, version)
    return timeline


def test_pause_is_the_longest_silence_of_one_request() -> None:
    timeline = two_requests()
    assert timeline.longest_gap_s(3.0, 5.0) == 4.0  # of a, although b went on before
    assert timeline.longest_gap_s(0.0, 1.5) == pytest.approx(1.0)
    assert timeline.longest_gap_s(8.0, 9.0) == 0


def test_pause_is_of_all_when_requests_do_not_overlap() -> None:
    timeline = Timeline()
    timeline.add(1.0, "a", 1, "1")
    timeline.add(4.0, "b", 1, "2")
    assert timeline.longest_gap_s(0.0, 9.0) == 3.0


def test_lag_ends_with_the_first_token_of_the_version() -> None:
    timeline = two_requests()
    assert timeline.first_s("2") == 5.0
    assert timeline.first_s("2", since=5) == 6.0
    assert timeline.first_s("3") is None
    assert timeline.rate(1.05, 5.0) == pytest.approx(4 * 2 / 3.95)


def test_model_is_one_gib_and_versions_differ_as_set() -> None:
    assert Layout.of(GIB).nbytes == pytest.approx(1 << 30, rel=0.01)
    layout = Layout.of(TINY)
    one, two = bytearray(layout.nbytes), bytearray(layout.nbytes)
    first(layout, memoryview(one))
    numbers = np.frombuffer(one, np.uint16).astype(np.uint32) << 16
    assert np.abs(numbers.view(np.float32)).max() == 1  # gains; no NaN
    for share in (1.0, 0.01):
        following(memoryview(one), memoryview(two), share, seed=2)
        changed = np.frombuffer(one, np.uint16) != np.frombuffer(two, np.uint16)
        assert changed.mean() == pytest.approx(share, rel=0.1)


def test_page_has_a_line_per_way_and_joined_engine() -> None:
    flips = [Flip("sglang", "all changed", pause, 0.2, 3.0, 10.0, 8.0, still_s=0.5) for pause in (1, 2, 9)]
    results = {
        "began": "now",
        "took_s": 9,
        "machine": {"load before the run": "0.10"},
        "load": asdict(Load(4, 8, 48)),
        "flips": [asdict(one) for one in flips],
        "joins": [asdict(Join("sglang", 1.0, 2.0, 20.0, 21.0, 22.0, 0.8, 1074.0))],
    }
    text = page.text(results)
    assert "| sglang, all changed | 3 | 2.00 | 0.200 | 0.500 | 3.00 |" in text
    assert "| sglang | 1 | 1.00 | 2.00 | 0.800 | 20.0 | 21.0 | 22.0 |" in text


@pytest.mark.long
@pytest.mark.realprocess
def test_each_way_reports_its_pause_on_a_decoding_host() -> None:
    sizes = Sizes(
        model=TINY,
        versions=1,
        baselines=1,
        joins=1,
        load=Load(together=2, prompt=4, response=64),
        times=Times(steady_s=0.2, after_s=0.1),
    )
    found = measure("builtin", Path("no-python"), sizes, lambda line: None)
    (joined,) = found.joins
    assert 0 < joined.registered_s < joined.pulled_s <= joined.serves_s
    assert joined.pulled_mb == pytest.approx(Layout.of(TINY).nbytes / 1e6, rel=1e-3)
    ways = {one.way: one for one in found.flips}
    assert list(ways) == ["all changed", "1 % changed", "paused for the transfer", "update_weights_from_disk"]
    assert 0 < ways["1 % changed"].pulled_mb < 0.1 * ways["all changed"].pulled_mb
    assert all(one.lag_s > 0 for one in found.flips)
