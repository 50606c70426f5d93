"""Checks are shown the events that they read, and those that they are not shown change nothing in them."""

import io
import pickle
from pathlib import Path

import pytest

from gleaner.chaos.invariants.catalogue import Jury
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.plan import load
from gleaner.chaos.sim_run import run
from gleaner.chaos.truth_sim import SimTruth

TINY = str(Path(__file__).with_name("tiny.toml"))
SHOWN = 40
"""Events of each kind, from the beginning of the run."""


class _State(pickle.Pickler):
    """All that a check keeps, without what it shares with others."""

    def persistent_id(self, obj: object) -> str | None:
        shared = isinstance(obj, Shadow | SimTruth) or callable(obj)
        return type(obj).__qualname__ if shared and not isinstance(obj, type) else None


def state(check: Check) -> bytes:
    out = io.BytesIO()
    _State(out).dump(vars(check))
    return out.getvalue()


def test_check_keeps_nothing_of_an_event_outside_its_committed_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Jury._shown
    left_out: dict[tuple[str, str], int] = {}

    def shown(jury: Jury, fact: Fact) -> None:
        if isinstance(fact, Committed) and len(fact.messages) == 1:
            for check in jury._checks:
                key = type(check).__name__, type(fact.messages[0]).__name__
                tried = isinstance(fact, check.fact_kinds) and left_out.get(key, 0) < SHOWN
                if tried and not isinstance(fact.messages[0], check.committed_kinds):
                    assert not check.wants(fact)
                    left_out[key] = left_out.get(key, 0) + 1
                    before = state(check)
                    assert list(check.see(fact)) == [], key
                    assert state(check) == before, key
        plain(jury, fact)

    monkeypatch.setattr(Jury, "_shown", shown)
    report = run(load(TINY), 1)
    assert not report.broken
    assert len({check for check, _ in left_out}) > 15
    assert len({event for _, event in left_out}) > 8
