"""State of the reward tier for inspection: counts, and why a request waits."""

import argparse
import asyncio
import math

import pytest

from gleaner.actors.reward.assignment.open_items import RewardItem
from gleaner.actors.reward.item_dispatch import ItemDispatch
from gleaner.actors.reward.scoring_queue import Verdict
from gleaner.actors.reward.status import state_of
from gleaner.rlctl.commands import reward_state
from gleaner.rlctl.commands.reward_state import batches, hosts, line_of, stages
from gleaner.rlctl.errors import NOTHING, OK


class NoLink:
    """A host that does nothing."""

    def give(self, stage: str, items: object) -> None: ...
    def cancel(self, items: object) -> None: ...
    def resize(self, stage: str, workers: int) -> None: ...


def item(name: str, batch: str, arrival_s: float) -> RewardItem:
    return RewardItem(name, batch, arrival_s, "score", b"")


async def test_state_shows_what_waits_runs_and_has_ended() -> None:
    dispatch = ItemDispatch(["score"], 100, 2)
    dispatch.hosts.took("score", 10.0)  # one item a worker
    dispatch.join("h", {"score": 1}, NoLink())
    dispatch.batches.hint("step-2", 4, 0.0)
    for number, (name, batch) in enumerate([("a", "step-1"), ("b", "step-2"), ("c", "step-1")]):
        dispatch.submit(item(name, batch, float(number)))
    dispatch.result("h", "a", "score", Verdict(1.0, "ok"), 10.0, attempt=0)
    await asyncio.sleep(0)
    dispatch.bar("h", "leaving", barred=True)
    state = state_of(dispatch, {"score": 3}, 20.0, "c")
    assert stages(state) == [("score", "0", "1", "3", "1", "1", "10 s")]
    assert hosts(state) == [("h", "score 1", "1", "leaving")]
    assert [row[:6] for row in batches(state)] == [
        ("step-2", "4", "1", "0", "0", "1"),
        ("step-1", "-", "2", "1", "1", "0"),
    ]
    assert state.item is not None
    assert line_of(state.item) == (
        "c of step-1 waits for score since 18 s, 0 items are in front of it: "
        "no host with workers of score gets new items: h (leaving)"
    )
    running, ended, gone = (state_of(dispatch, {}, 20.0, name).item for name in ("b", "a", "x"))
    assert running is not None
    assert (running.state, running.host) == ("runs", "h")
    assert ended is not None
    assert line_of(ended) == "a has its verdict"
    assert gone is not None
    assert line_of(gone) == "x is not here"


async def test_state_has_the_delay_that_a_plan_tolerates() -> None:
    dispatch = ItemDispatch(["score"], 100, 2)
    for name in ("long", "short", "new"):
        dispatch.batches.hint(name, 4, 0.0)
    for batch in dispatch.batches.active():
        batch.complete_s = {"long": 1000.0, "short": 100.0}.get(batch.name, math.inf)
    found = {one.name: one.tolerated_s for one in state_of(dispatch, {}, 20.0, max_delay_s=5.0).batches}
    assert found == {"long": 5.0, "short": 1.0, "new": None}
    assert {one.tolerated_s for one in state_of(dispatch, {}, 20.0).batches} == {None}


async def test_item_waits_behind_those_of_earlier_batches() -> None:
    dispatch = ItemDispatch(["score"], 100, 2)
    dispatch.batches.complete_s = {"late": 50.0, "early": 10.0}
    for name, batch, arrival_s in (("a", "late", 0.0), ("b", "early", 1.0), ("c", "late", 2.0)):
        dispatch.submit(item(name, batch, arrival_s))
    ahead = {}
    for name in "abc":
        found = state_of(dispatch, {}, 5.0, name).item
        assert found is not None
        ahead[name] = found.ahead
    assert ahead == {"b": 0, "a": 1, "c": 2}


async def test_tap_exits_with_3_for_a_request_that_the_tier_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dispatch = ItemDispatch(["score"], 100, 2)
    for name in ("waits", "ends"):
        dispatch.submit(item(name, "step-1", 0.0))
    dispatch.join("h", {"score": 2}, NoLink())
    dispatch.result("h", "ends", "score", Verdict(1.0, "ok"), 1.0, attempt=0)
    monkeypatch.setattr(reward_state, "_asked", lambda _, request: state_of(dispatch, {}, 5.0, request))

    def tapped(request: str, *, as_json: bool = False) -> int:
        return reward_state.tap(argparse.Namespace(request=request, json=as_json))

    codes = [tapped(name) for name in ("waits", "ends", "gone")]
    assert (codes, tapped("gone", as_json=True)) == ([OK, OK, NOTHING], NOTHING)
    assert NOTHING == 3, "as the help promises"
    assert "ends has its verdict" in capsys.readouterr().out
