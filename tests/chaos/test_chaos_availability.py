"""Changing availability: traces cut into stays, and traces of users."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.chaos.availability import stays
from gleaner.chaos.faults import STAY, KillProcess, Stay
from gleaner.chaos.plan import BadCampaign, Loaded, load
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.sim_run import run
from gleaner.configs.trace import Event, Trace, TraceEvent, read
from gleaner.rlctl import __main__ as command_line

TINY = str(Path(__file__).with_name("tiny.toml"))
HEADER = "t_seconds,event,instance_id\n"
SPOT = Path(__file__).parents[3] / "shared" / "data" / "spot"
"""Real traces, if they are beside the checkout; they are not part of it."""


@pytest.fixture(scope="module")
def tiny() -> Loaded:
    return load(TINY)


def fleet_of(count: int, length_s: float) -> Trace:
    """`count` instances that arrive one a second and stay for `length_s`."""
    events = [TraceEvent(float(n), Event.ADD, f"n{n}") for n in range(count)]
    events += [TraceEvent(n + length_s, Event.REMOVE, f"n{n}") for n in range(count)]
    return Trace("fleet", tuple(sorted(events, key=lambda it: (it.t_s, it.event != Event.REMOVE))))


@given(st.integers(1, 40), st.floats(0.5, 30), st.integers(1, 5), st.floats(0, 20), st.floats(1, 40))
def test_stays_of_few_hosts_are_a_subset_of_fleet(
    count: int, length_s: float, hosts: int, from_s: float, for_s: float
) -> None:
    found = stays(fleet_of(count, length_s), from_s=from_s, for_s=for_s, speed=2.0, hosts=hosts)
    for stay in found:
        together = [other for other in found if other.at_s <= stay.at_s < other.over_s]
        assert len(together) <= hosts
    whole = stays(fleet_of(count, length_s), from_s=from_s, for_s=for_s, speed=2.0, hosts=count)
    assert set(found) <= set(whole)
    assert bool(found) == bool(whole)
    if hosts >= count:
        assert found == whole


def test_simultaneous_hosts_are_chosen_by_earliest_removal() -> None:
    trace = Trace(
        "two",
        (
            TraceEvent(0.0, Event.ADD, "a"),
            TraceEvent(0.0, Event.ADD, "b"),
            TraceEvent(10.0, Event.REMOVE, "b"),
        ),
    )
    assert [stay.host for stay in stays(trace, from_s=0.0, for_s=60.0, speed=1.0, hosts=1)] == ["b"]


def test_stay_fires_when_trace_removes_host_or_gives_notice(tiny: Loaded) -> None:
    """Hosts that are killed by the trace, noticed by the trace, killed by another fault, or present to the
    end."""
    schedule = Schedule(
        seed=5,
        faults=(
            Stay(host="n1", at_s=0.0, for_s=3.0),
            Stay(host="n2", at_s=0.0, for_s=6.0, notice_s=4.0),
            Stay(host="n3", at_s=4.0, for_s=900.0),
            Stay(host="n4", at_s=800.0, for_s=10.0),
        ),
    )
    outcome = run(tiny, 5, schedule)
    assert (outcome.broken, outcome.ended) == ((), "done")
    assert outcome.fired == {STAY: 2}
    calm = run(tiny, 5, Schedule(seed=5, faults=(Stay(host="n3", at_s=0.0, for_s=900.0),)))
    assert (calm.broken, calm.ended, calm.fired) == ((), "done", {})
    killed = schedule.with_faults(
        [Stay(host="n3", at_s=0.0, for_s=900.0), KillProcess(at_s=8.0, host="n3", process="agent")]
    )
    assert STAY not in run(tiny, 5, killed).fired


def test_simultaneous_notices_drain_without_keeping_manager_busy(
    tiny: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two simultaneous drains used to wake each other for the whole grace, so no other task got a turn."""
    monkeypatch.setattr("gleaner.sim.loop.MAX_TURNS_AT_ONCE", 50_000)
    for seed in range(3):
        together = [Stay(host=host, at_s=0.0, for_s=8.0, notice_s=6.0) for host in ("n1", "n2")]
        outcome = run(tiny, seed, Schedule(seed=seed, faults=tuple(together)))
        assert (outcome.broken, outcome.ended, outcome.fired) == ((), "done", {STAY: 2})


def test_job_ends_alone_when_all_preemptible_hosts_leave(tiny: Loaded) -> None:
    outcome = run(tiny, 6, Schedule(seed=6, faults=(Stay(host="n1", at_s=0.0, for_s=2.0),)))
    assert (outcome.broken, outcome.ended) == ((), "done")
    assert outcome.fired == {STAY: 1}
    assert outcome.counts["steps.colocated"] > 0


def test_user_traces_are_followed_in_every_run(tmp_path: Path) -> None:
    for name, instance in (("one", "x"), ("two", "y")):
        (tmp_path / f"{name}.csv").write_text(f"{HEADER}0,add,{instance}\n4000,remove,{instance}\n")
    loaded = load(TINY, [str(tmp_path)])
    assert sorted(loaded.traces) == ["one", "two"]
    drawn = [loaded.schedule(seed) for seed in range(12)]
    hosts = [[fault.host for fault in one.faults if isinstance(fault, Stay)] for one in drawn]
    assert all(hosts)
    assert {host for of_run in hosts for host in of_run} == {"x", "y"}
    assert STAY in loaded.campaign.wanted_faults
    kills = [[fault for fault in one.faults if not isinstance(fault, Stay)] for one in drawn]
    assert kills == [list(load(TINY).schedule(seed).faults) for seed in range(12)], "the rest stays as drawn"


@pytest.mark.parametrize(
    ("files", "named", "problem"),
    [
        ({}, "", "no *.csv in this folder; name a folder of traces"),
        ({}, "nowhere.csv", "nowhere.csv: cannot be read: No such file"),
        ({"a.csv": "when,what\n"}, "a.csv", "a.csv:1: expected the header t_seconds,event,instance_id"),
        ({"a.csv": f"{HEADER}5,remove,n1\n"}, "", "a.csv:2: remove of n1, which was never added"),
        ({"a.csv": f"{HEADER}0,add,head\n"}, "", "head is the name of another host"),
    ],
)
def test_invalid_trace_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str], named: str, problem: str,
) -> None:  # fmt: skip
    from gleaner.chaos.commands import sim

    monkeypatch.setattr("gleaner.rlctl.extensions.announced", lambda: [sim])
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(BadCampaign) as refused:
        load(TINY, [str(tmp_path / named)])
    assert problem in str(refused.value)
    argv = ["sim", "run", "--campaign", TINY, "--availability", str(tmp_path / named)]
    assert command_line.main(argv) == 2
    assert problem in capsys.readouterr().err


def test_traces_of_same_name_are_distinguished_by_origin(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "spot.csv").write_text(f"{HEADER}0,add,n1\n")
    with pytest.raises(BadCampaign, match="another trace is called spot too"):
        load(TINY, [str(tmp_path / "a"), str(tmp_path / "b")])


def test_replay_never_overwrites_an_availability_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gleaner.chaos.commands import sim

    monkeypatch.setattr("gleaner.rlctl.extensions.announced", lambda: [sim])
    file = tmp_path / "spot.csv"
    file.write_text(f"{HEADER}0,add,n1\n")
    assert command_line.main(["sim", "replay", "3", "--campaign", TINY, "--trace", str(file)]) == 2
    assert "name it with --availability" in capsys.readouterr().err
    assert file.read_text() == f"{HEADER}0,add,n1\n"


@pytest.mark.timeout(300)  # a process of its own, with all imports
def test_command_follows_trace_and_prints_replay_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gleaner.chaos.commands import sim

    monkeypatch.setattr("gleaner.rlctl.extensions.announced", lambda: [sim])
    spot, out = tmp_path / "spot.csv", tmp_path / "told.json"
    rows = [f"{at},add,n{at}\n{at + 300},remove,n{at}\n" for at in range(0, 20_000, 300)]
    spot.write_text(HEADER + "".join(rows))
    argv = ["sim", "run", "--campaign", TINY, "--seeds", "1:2", "--jobs", "1", "--json", str(out)]
    command_line.main([*argv, "--trace", str(spot)])
    (outcome,) = json.loads(out.read_bytes())["results"]
    assert outcome["fired"][STAY] > 0
    assert outcome["broken"] == []
    capsys.readouterr()
    again = ["sim", "replay", "1", "--campaign", TINY, "--availability", str(spot)]
    assert command_line.main(again) == 0
    assert outcome["trace_hash"] in capsys.readouterr().out


@pytest.mark.skipif(not SPOT.is_dir(), reason=f"{SPOT} is not there: no real traces to read")
def test_real_traces_are_taken_unchanged() -> None:
    loaded = load(TINY, [str(SPOT)])
    assert len(loaded.traces) >= 9
    for file in sorted(SPOT.glob("*.csv")):
        trace = read(file)
        found = stays(trace, from_s=0.0, for_s=trace.end_s + 1.0, speed=60.0, hosts=1000)
        assert len(found) == sum(event.event is Event.ADD for event in trace.events), file.name
        few = stays(trace, from_s=0.0, for_s=trace.end_s + 1.0, speed=60.0, hosts=3)
        assert len(few) > 3, file.name
