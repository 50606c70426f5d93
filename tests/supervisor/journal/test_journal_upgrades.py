"""Upgrades of journaled events and snapshots, in every store.

Events of older programs are read; events of newer ones are refused.
"""

import asyncio
from typing import ClassVar

import msgspec
import pytest
from journal_places_under_test import PlaceUnderTest, put

from gleaner.supervisor import JournalError, JournalUnreadable, Message
from gleaner.supervisor.journal.group_commit import NewRow
from gleaner.supervisor.journal.port import Journal
from gleaner.supervisor.journal.upgrades import Fields, decode_stored, forgets, upgrades


class Measured(Message, frozen=True):
    """Version 1 had `inches`, version 2 `centimetres`. `unit_known` came with a default, so it needed no
    version."""

    SCHEMA: ClassVar[int] = 3

    millimetres: int
    unit_known: bool = True


class Measurements(Message, frozen=True):
    """A snapshot; version 1 kept a list of pairs."""

    SCHEMA: ClassVar[int] = 2

    by_name: dict[str, int]


class NoWayUp(Message, frozen=True):
    """No upgrade starts from version 1."""

    SCHEMA: ClassVar[int] = 2


@upgrades("Measured", 1)
def _inches(fields: Fields) -> Fields:
    return {"centimetres": fields["inches"] * 2.5}


@upgrades("Measured", 2)
def _centimetres(fields: Fields) -> Fields:
    return {"millimetres": round(fields["centimetres"] * 10)}


@upgrades("Gauged", 1, to="Measured", to_version=2)
def _gauged(fields: Fields) -> Fields:
    return {"centimetres": fields["metres"] * 100}


@upgrades("Measurements", 1)
def _pairs(fields: Fields) -> Fields:
    return {"by_name": dict(fields["pairs"])}


forgets("Weighed", 1)


def row(kind: str, version: int, **fields: object) -> NewRow:
    return NewRow(kind, version, msgspec.msgpack.encode({"type": kind, **fields}))


OLD = [
    row("Measured", 1, inches=4),
    row("Measured", 2, centimetres=12.5),
    row("Gauged", 1, metres=2),
    row("Weighed", 1, grams=5),
    row("Measured", 3, millimetres=7, unit_known=False),
]
TODAY = [
    Measured(millimetres=100),
    Measured(millimetres=125),
    Measured(millimetres=2000),
    Measured(millimetres=7, unit_known=False),
]


async def test_older_events_are_replayed_as_current_ones(place: PlaceUnderTest) -> None:
    await asyncio.to_thread(put, place.keeper(), "a", 1, OLD)
    store = place.open()
    journal = Journal(store, "a", 2)
    assert [event async for event in journal.replay()] == TODAY
    await journal.append(Measured(millimetres=1))
    await store.close()
    assert list(place.content("a").messages) == [*TODAY, Measured(millimetres=1)]


async def test_older_snapshot_is_upgraded_too(place: PlaceUnderTest) -> None:
    rows = [row("Measurements", 1, pairs=[["door", 20], ["roof", 3]])]
    await asyncio.to_thread(put, place.keeper(), "a", 1, rows, True)
    store = place.open()
    found = [event async for event in Journal(store, "a", 2).replay()]
    assert found == [Measurements(by_name={"door": 20, "roof": 3})]
    await store.close()


@pytest.mark.parametrize(
    ("written", "what"),
    [
        (
            row("Measured", 4, feet=1),
            "Measured version 4 was written by a newer program, .* supports version 3",
        ),
        (row("Unheard", 1, feet=1), "Unheard version 1 is not known to this program: a newer one wrote it"),
        (row("NoWayUp", 1), "NoWayUp version 1: no upgrade leads to version 2"),
        (row("Measured", 3, millimetres="wide"), "Measured version 3 does not decode"),
        (
            row("Measured", 1, millimetres=3),
            "the upgrade of Measured version 1 to .* version 2 failed: KeyError",
        ),
        (NewRow("Measured", 1, b"\xc1"), "Measured version 1 does not decode"),
    ],
)
async def test_unreadable_event_is_refused_with_versions_and_place(
    place: PlaceUnderTest, written: NewRow, what: str
) -> None:
    await asyncio.to_thread(put, place.keeper(), "a", 1, [OLD[0], written])
    store = place.open()
    with pytest.raises(JournalUnreadable, match=f"event 2 of a: {what}") as problem:
        _ = [event async for event in Journal(store, "a", 2).replay()]
    assert "j.sqlite" in str(problem.value) or "postgresql://" in str(problem.value)
    with pytest.raises(JournalError, match=what):
        place.content("a")
    await store.close()


def test_two_upgrades_from_one_version_are_refused() -> None:
    with pytest.raises(ValueError, match="two upgrades of 'Measured' version 1"):

        @upgrades("Measured", 1)
        def _again(fields: Fields) -> Fields:
            return fields

    with pytest.raises(ValueError, match="two upgrades"):
        forgets("Measured", 1)


def test_circular_upgrades_terminate() -> None:
    @upgrades("Chased", 1, to="Chaser")
    def _there(fields: Fields) -> Fields:
        return fields

    @upgrades("Chaser", 1, to="Chased")
    def _back(fields: Fields) -> Fields:
        return fields

    with pytest.raises(JournalUnreadable):
        decode_stored("Chased", 1, msgspec.msgpack.encode({"type": "Chased"}))
