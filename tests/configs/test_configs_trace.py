"""Availability traces: the format, its refusals, and queries by time."""

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.cluster.fleet import FleetAction, FleetPolicy, KillHost, NoticeHost, StartHost
from gleaner.configs.load import load
from gleaner.configs.trace import (
    HEADER,
    MAX_BYTES,
    Availability,
    Event,
    Trace,
    TraceError,
    TraceEvent,
    parse,
    read,
)

TOP = ",".join(HEADER)
QUICKSTART = Path(__file__).parents[2] / "configs" / "traces" / "quickstart.csv"


def trace(*rows: str) -> Trace:
    return parse("\n".join([TOP, *rows]), "t.csv")


def refused(*rows: str) -> str:
    with pytest.raises(TraceError) as caught:
        trace(*rows)
    return str(caught.value)


@pytest.mark.parametrize(
    ("rows", "line", "words"),
    [
        (["5,add,a", "4,add,b"], 3, "t_seconds 4 comes after 5; sort the rows"),
        (["0,start,a"], 2, "unknown event 'start'; use add, notice or remove"),
        (["0,remove,a"], 2, "remove of a, which was never added"),
        (["0,notice,a"], 2, "notice of a, which was never added"),
        (["0,add,a", "1,remove,a", "2,remove,a"], 4, "remove of a, which is gone since line 3"),
        (["0,add,a", "1,remove,a", "2,notice,a"], 4, "notice of a, which is gone since line 3"),
        (["0,add,a", "1,add,a"], 3, "a is added again, it is up since line 2"),
        (["0,add,a", "1,notice,a", "2,notice,a"], 4, "a has its notice since line 3"),
        (["soon,add,a"], 2, "t_seconds 'soon': expected a number of seconds ≥ 0"),
        (["nan,add,a"], 2, "t_seconds 'nan'"),
        (["inf,add,a"], 2, "t_seconds 'inf'"),
        (["-1,add,a"], 2, "t_seconds '-1'"),
        (["0,add"], 2, "expected 3 values"),
        (["0,add,a,b"], 2, "expected 3 values"),
        (["0,add,../../etc"], 2, "instance_id '../../etc': use 1 to 64 letters"),
        (["0,add,.."], 2, "instance_id '..'"),
        (["0,add,"], 2, "instance_id ''"),
        (["0,add," + "a" * 65], 2, "instance_id"),
    ],
)
def test_bad_row_is_refused_with_line_and_remedy(rows: list[str], line: int, words: str) -> None:
    message = refused(*rows)
    assert message.startswith(f"t.csv:{line}: ")
    assert words in message


def test_trace_without_header_or_rows_is_refused() -> None:
    for text in ("", "0,add,a\n", "time,event,id\n"):
        with pytest.raises(TraceError, match=f"t.csv:1: expected the header {TOP}"):
            parse(text, "t.csv")
    with pytest.raises(TraceError, match=r"t\.csv: no events"):
        parse(TOP + "\n", "t.csv")


def test_unreadable_files_are_refused_by_name(tmp_path: Path) -> None:
    for bad in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(TraceError, match="cannot be read"):
            read(bad)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\x00")
    with pytest.raises(TraceError, match="UTF-8"):
        read(binary)
    large = tmp_path / "large.csv"
    with large.open("wb") as handle:
        handle.truncate(MAX_BYTES + 1)
    with pytest.raises(TraceError, match="larger than"):
        read(large)


def test_byte_order_mark_crlf_and_blank_lines_are_harmless(tmp_path: Path) -> None:
    file = tmp_path / "windows.csv"
    file.write_bytes(f"\ufeff{TOP}\r\n0,add,a\r\n\r\n 1.5 , remove , a \r\n".encode())
    assert read(file).events == (TraceEvent(0.0, Event.ADD, "a"), TraceEvent(1.5, Event.REMOVE, "a"))


def test_instance_may_return_and_get_notice_again() -> None:
    again = trace("0,add,a", "1,notice,a", "2,remove,a", "3,add,a", "4,notice,a")
    assert len(again.events) == 5
    assert again.end_s == 4


def test_availability_follows_the_events() -> None:
    available = Availability(trace("0,add,a", "5,add,b", "5,remove,a", "7,notice,b", "9,remove,b", "9,add,a"))
    assert [available.available_at(t) for t in (0, 4.9, 5, 8, 9, 1e9)] == [
        {"a"},
        {"a"},
        {"b"},
        {"b"},
        {"a"},
        {"a"},
    ]
    assert [event.instance for event in available.events_between(5, 9)] == ["b", "a", "b"]
    assert available.next_after(0) == 5
    assert available.next_after(9) is None


@st.composite
def histories(draw: st.DrawFn) -> Trace:
    """A valid trace, made by doing only what its state allows."""
    up: dict[str, bool] = {}
    now, rows = 0.0, []
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0, 0.5, 3]))
        name = draw(st.sampled_from("abcd"))
        if name not in up:
            event, up[name] = "add", False
        elif up[name] or draw(st.booleans()):
            event = "remove"
            del up[name]
        else:
            event, up[name] = "notice", True
        rows.append(f"{now},{event},{name}")
    return trace(*rows)


@given(histories(), st.lists(st.floats(0, 80), max_size=6))
def test_adjacent_windows_see_every_event_once(made: Trace, cuts: list[float]) -> None:
    available = Availability(made)
    edges = [0.0, *sorted(cuts), made.end_s + 100]
    seen: list[TraceEvent] = []
    for start, end in itertools.pairwise(edges):
        seen += available.events_between(start, end)
        up = {e.instance for e in seen if e.event is Event.ADD}
        for instance in list(up):
            last = [e.event for e in seen if e.instance == instance and e.event is not Event.NOTICE][-1]
            if last is Event.REMOVE:
                up.discard(instance)
        if not any(event.t_s == end for event in made.events):
            assert available.available_at(end) == up
    assert tuple(seen) == made.events


@given(st.text(max_size=80))
def test_any_text_is_a_trace_or_trace_error(text: str) -> None:
    for whole in (text, f"{TOP}\n{text}"):
        problem = "any:"
        try:
            assert parse(whole, "any").events
        except TraceError as error:
            problem = str(error)
        assert problem.startswith("any:")


def test_quickstart_trace_kills_notifies_and_fits_two_cores() -> None:
    made = read(load("quickstart").fleet.trace)
    assert made.events == read(QUICKSTART).events
    settings = load("quickstart").fleet
    assert settings.n_prem_max == 2
    fleet = FleetPolicy(Availability(made), n_prem_max=settings.n_prem_max, notice_s=settings.notice_s)
    actions: list[FleetAction] = []
    for second in range(60):
        taken = fleet.advance(float(second))
        for action in taken:
            if not isinstance(action, StartHost):
                fleet.exited(action.name, float(second), in_order=isinstance(action, NoticeHost))
        actions += [*taken, *fleet.allocate(float(second))]
        assert len(fleet.running) == 2, f"at {second} s no replacement is on offer"
    assert sum(isinstance(action, KillHost) for action in actions) >= 3
    assert sum(isinstance(action, NoticeHost) for action in actions) == 1


def test_public_traces_are_read_whole() -> None:
    folder = Path(os.environ.get("GLEANER_DATA", Path(__file__).parents[3] / "shared" / "data")) / "spot"
    if not folder.is_dir():
        pytest.skip(f"no traces in {folder}; set GLEANER_DATA to the data folder")
    files = sorted(folder.glob("*.csv"))
    assert files
    for file in files:
        assert len(read(file).events) == len(file.read_text().split()) - 1
