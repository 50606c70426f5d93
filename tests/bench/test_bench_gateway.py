"""The bench of gateway fronts: its figures of a load, and its fake server."""

import json

import msgspec
import pytest

from bench.gateway.client import LoadResult
from bench.gateway.fake_server import events, is_told
from bench.gateway.figures import Figures, figures
from bench.gateway.fronts import OURS, ROUTER
from bench.gateway.goals import goals
from bench.gateway.page import cells
from gleaner.actors.engine.servers.sglang_events import newest_rows
from gleaner.actors.engine.servers.sglang_messages import Event


def test_figures_are_those_of_the_load() -> None:
    ttft_s = [0.01 * number for number in range(1, 101)]
    seen = LoadResult(tokens=2000, seconds=4.0, ttft_s=ttft_s, errors=["a", "b"], broken=3)
    found = figures("2 servers", "a front", 64, seen, cpu_s=0.5, killed=True)
    assert (found.tokens_per_s, found.cpu_s_per_m, found.lost) == (500.0, 250.0, 5)
    assert (found.ttft_p50_s, found.ttft_p99_s) == (pytest.approx(0.505), pytest.approx(1.0))
    shown = cells(found)
    assert shown[0] == "2 servers, one is killed"
    assert shown[3:] == ("500", "505 ms", "1,000 ms", "250.0", "5")


def test_empty_load_gives_nan_instead_of_division_error() -> None:
    shown = cells(figures("s", "f", 1, LoadResult(seconds=1.0, errors=["gone"]), 0.1, killed=False))
    assert shown[3:] == ("0", "nan ms", "nan ms", "nan", "1")


def test_fake_server_event_holds_all_earlier_ones() -> None:
    sent = [event.removeprefix(b"data: ").strip() for event in events(3)]
    metas = [msgspec.json.decode(event, type=Event).meta_info for event in sent]
    assert [len(json.loads(event)["output_ids"]) for event in sent] == [1, 2, 3]
    assert [meta.completion_tokens for meta in metas if meta is not None] == [1, 2, 3]
    assert metas[2] is not None
    assert metas[1] is not None
    assert newest_rows(metas[2].output_token_logprobs, 3)[:2] == newest_rows(
        metas[1].output_token_logprobs, 2
    )


@pytest.mark.parametrize(
    ("interval", "count", "sent"), [(1, 4, [1, 2, 3, 4]), (3, 8, [1, 4, 7, 8]), (9, 2, [1, 2])]
)
def test_fake_server_sends_first_token_at_once_then_batches(
    interval: int, count: int, sent: list[int]
) -> None:
    assert [at for at in range(1, count + 1) if is_told(at, count, interval)] == sent


def test_goals_compare_fronts_at_highest_concurrency() -> None:
    def of(
        front: str, together: int, speed: float, ttft_s: float, cpu: float, killed: bool = False
    ) -> Figures:
        return Figures("servers", front, together, speed, ttft_s, 1.0, cpu, 3 if killed else 0, killed)

    found = [
        of(OURS, 1, 1.0, 9.0, 900.0),
        of(OURS, 64, 90.0, 0.2, 50.0),
        of(OURS, 64, 90.0, 0.2, 50.0, killed=True),
        of(ROUTER, 64, 100.0, 0.04, 25.0),
        of(ROUTER, 64, 100.0, 0.04, 25.0, killed=True),
    ]
    assert [(measured, verdict) for _, measured, verdict in goals(found)] == [
        ("2.00x", "met"),
        ("0.90x", "NOT met"),
        ("5.00x", "NOT met"),
        ("3 lost (router: 3)", "NOT met"),
    ]
