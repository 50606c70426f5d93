"""Taps: a tap keeps the messages that its reader asked for, within bounds.

It ends when its reader is gone.
"""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.supervisor import Message, Refused
from gleaner.supervisor.inspection.tap import (
    MAX_BODY,
    MAX_READERS,
    MAX_TEXT,
    MAX_WAITING,
    ReadTap,
    StartTap,
    StopTap,
    Tap,
    TapReader,
    body_of,
)


class Tapped(Message, frozen=True):
    text: str = ""
    blob: bytes = b""
    deep: dict[str, list[int]] = {}


class OtherTapped(Message, frozen=True):
    number: float = 0.0


def test_reader_gets_messages_of_its_actors_in_order() -> None:
    reader = TapReader(StartTap(reader="r", actor="rollout/*", kind="Tap*"), lambda: 5.0)
    reader.seen("in", "tell", "head/agent", "rollout/manager", Tapped(text="to"))
    reader.seen("in", "ask", "rollout/balancer", "head/agent", Tapped(text="from"))
    reader.seen("in", "tell", "head/agent", "reward/proxy", Tapped(text="elsewhere"))
    reader.seen("in", "tell", "head/agent", "rollout/manager", OtherTapped())
    reader.seen("out", "tell", "rollout/manager", "head/agent", Tapped(text="seen where it arrives"))
    answer = reader.read(10)
    assert [json.loads(record.body)["text"] for record in answer.records] == ["to", "from"]
    assert [(r.mode, r.source, r.to, r.kind, r.t_s) for r in answer.records][1] == (
        "ask", "rollout/balancer", "head/agent", "Tapped", 5.0,
    )  # fmt: skip
    assert (answer.skipped, reader.read(10).records) == (0, [])


def test_messages_beyond_the_rate_are_skipped_and_counted() -> None:
    now = [0.0]
    reader = TapReader(StartTap(reader="r", rate=10.0), lambda: now[0])
    for _ in range(100):
        reader.seen("local", "tell", "a", "b", Tapped())
    first = reader.read(1000)
    assert (len(first.records), first.skipped) == (10, 90)
    now[0] = 0.5
    for _ in range(100):
        reader.seen("local", "tell", "a", "b", Tapped())
    second = reader.read(1000)
    assert (len(second.records), second.skipped) == (5, 95)


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 30)), max_size=300))
def test_every_message_is_read_or_skipped_and_few_wait(story: list[tuple[float, int]]) -> None:
    now = [0.0]
    reader = TapReader(StartTap(reader="r", rate=1e9), lambda: now[0])
    seen = read = skipped = 0
    for pause, limit in story:
        now[0] += pause
        for _ in range(20):
            reader.seen("in", "tell", "a", "b", OtherTapped())
        seen += 20
        answer = reader.read(limit)
        read += len(answer.records)
        skipped += answer.skipped
    rest = reader.read(MAX_WAITING)
    assert reader.read(1).records == []
    assert seen == read + skipped + len(rest.records) + rest.skipped
    assert len(rest.records) <= MAX_WAITING


def test_body_is_small_json_for_any_message() -> None:
    huge = Tapped(text="x" * 10_000, blob=bytes(1 << 20), deep={str(n): list(range(999)) for n in range(999)})
    body = json.loads(body_of(huge))
    assert len(body["text"]) < MAX_TEXT + 40
    assert body["text"].endswith("(10000 characters)")
    assert body["blob"].endswith("(1048576 bytes)")
    assert body["deep"]["0"][-1] == "… (999 items)"
    assert body["deep"]["15"] == "…"  # the budget for values was spent
    assert body["deep"]["…"] == "999 entries"
    assert len(body_of(huge)) <= MAX_BODY
    assert json.loads(body_of(OtherTapped(number=float("nan")))) == {"number": "nan"}


async def test_tap_ends_when_its_reader_vanishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gleaner.supervisor.inspection.tap.IDLE_S", 0.05)
    changes: list[Tap | None] = []
    gone = asyncio.Event()

    def changed(tap: Tap | None) -> None:
        changes.append(tap)
        if tap is None:
            gone.set()

    tap = Tap(changed)
    tap.start(StartTap(reader="stays"))
    tap.start(StartTap(reader="vanishes"))
    assert changes == [tap]
    tap.seen("in", "tell", "a", "b", Tapped())
    assert len(tap.read(ReadTap(reader="stays")).records) == 1
    tap.stop(StopTap(reader="stays"))
    tap.stop(StopTap(reader="stays"))
    await asyncio.wait_for(gone.wait(), 60.0)
    assert changes == [tap, None]
    with pytest.raises(Refused, match="no such tap"):
        tap.read(ReadTap(reader="vanishes"))


async def test_number_of_readers_is_bounded() -> None:
    tap = Tap(lambda _: None)
    for number in range(MAX_READERS):
        tap.start(StartTap(reader=str(number)))
    tap.start(StartTap(reader="0", kind="Other*"))  # another filter, not another reader
    with pytest.raises(Refused, match="close one"):
        tap.start(StartTap(reader="one more"))
    tap.close()
