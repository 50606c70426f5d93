"""The modelled waves: bounds of the relay policy, and laws of the model."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from bench.weights import fan_out, fan_out_picture
from bench.weights.max_min import max_min
from bench.weights.wave_cases import PLAIN, Case, cases, coarse, joining, tell
from bench.weights.wave_model import StandsStill, spread
from bench.weights.wave_world import Event, World

COARSE = replace(PLAIN, chunk_bytes=125_000_000)  # 128 chunks; with smaller ones waves are faster


def test_flows_share_bottleneck_evenly_and_use_free_capacity() -> None:
    flows = {"a": ["up", "narrow"], "b": ["up", "wide"], "c": ["up", "wide"]}
    shares = max_min(flows, {"up": 10.0, "narrow": 2.0, "wide": 100.0})
    assert shares == {"a": 2.0, "b": 4.0, "c": 4.0}


SMALL = [case for case in cases() if not case.name.startswith("64")]
WORST = [case for case in cases() if case.name == "64, three hosts silent, of three chains"]


@pytest.mark.parametrize("case", SMALL + WORST, ids=lambda case: case.name)
def test_every_wave_stays_within_its_bound_with_larger_chunks(case: Case) -> None:
    if case.world.payload_bytes == PLAIN.payload_bytes:
        (case,) = coarse([case], 62_500_000)
    shown = tell(case)
    assert shown.met, f"{shown.times_alone:.3f} times one alone, {shown.copies:.2f} copies crossed"
    assert not shown.star_s or shown.outcome.last_s <= 1.02 * shown.star_s


def test_wave_to_64_receivers_takes_little_longer_than_one() -> None:
    world = replace(PLAIN, chunk_bytes=62_500_000)
    alone_s = spread(world, joining(1)).last_s
    assert alone_s == pytest.approx(2.56, abs=0.01)
    assert spread(world, joining(16)).last_s <= 1.1 * alone_s
    assert spread(world, joining(64)).last_s <= 1.2 * alone_s
    assert spread(replace(world, star=True), joining(64)).last_s == pytest.approx(16 * alone_s, rel=0.01)


def test_wave_time_follows_its_closed_form() -> None:
    world = replace(COARSE, hop_s=0.002)
    pipeline_s = 3 * (world.chunk_bytes / 6.25e9 + world.hop_s)
    assert spread(world, joining(16)).last_s == pytest.approx(2.56 + pipeline_s, abs=0.01)


def test_killed_receivers_waste_only_chunks_in_flight() -> None:
    events = (*joining(8), Event(0.7, "kill", "r0"), Event(1.1, "vanish", "r1"))
    outcome = spread(COARSE, events)
    assert set(outcome.done_s) == {f"r{number}" for number in range(2, 8)}
    assert 0 < outcome.wasted_bytes <= 2 * COARSE.chunk_bytes
    pulled = sum(outcome.served_bytes.values())
    assert 6 * COARSE.payload_bytes <= pulled <= 8 * COARSE.payload_bytes


def test_corrupt_source_wastes_two_chunks_and_is_avoided() -> None:
    outcome = spread(COARSE, (*joining(8), Event(0.7, "lie", "r0")))
    assert outcome.wasted_bytes <= 2 * COARSE.chunk_bytes
    late = [parent for at_s, _, parent in outcome.edges if at_s > 0.7]
    assert "r0" not in late


def test_wave_model_is_deterministic() -> None:
    events = (*joining(12), Event(0.7, "vanish", "r2"), Event(1.0, "join", "late"))
    assert spread(COARSE, events) == spread(COARSE, events)


def test_wave_without_any_receiver_served_is_an_error() -> None:
    dead = World(chunk_bytes=125_000_000, origin_bytes_s=1e-3)
    with pytest.raises(StandsStill, match="r0"):
        spread(dead, joining(1))


def test_page_has_a_row_per_case_and_self_contained_picture() -> None:
    shown = [tell(case) for case in coarse(cases()[:3], COARSE.chunk_bytes)]
    page = fan_out.page(shown)
    assert [line for line in page.splitlines() if line.startswith("| 16 receivers | 2.6")]
    root = ElementTree.fromstring(fan_out_picture.picture())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "r5" in "".join(root.itertext())
