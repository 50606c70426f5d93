"""Faults and schedules: TOML round trips, stable order, helpful refusals."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.chaos.faults import (
    KINDS,
    Fault,
    KillHost,
    KillProcess,
    Partition,
    Zombie,
    description,
    kind_of,
    to_json,
)
from gleaner.chaos.schedule import BadSchedule, Schedule, dump, in_order, load

KILLS = st.builds(
    KillProcess,
    at_s=st.floats(0, 100),
    host=st.sampled_from(["@preemptible/1", "head", "reserved-1"]),
    process=st.sampled_from(["rollout", "engine", "agent"]),
)
CUTS = st.builds(
    Partition, at_s=st.floats(0, 100), a=st.just("head"), b=st.just("spot-1"), for_s=st.floats(0.1, 50)
)
HOSTS = st.builds(
    KillHost, at_s=st.floats(0, 100), host=st.sampled_from(["@reserved", "spot-1"]), back_s=st.floats(0, 9)
)
SCHEDULES = st.builds(
    lambda seed, faults: Schedule(seed=seed, faults=in_order(faults)),
    st.integers(0, 2**62),
    st.lists(st.one_of(KILLS, CUTS, HOSTS), max_size=8),
)


@given(SCHEDULES)
def test_schedule_survives_a_toml_round_trip(schedule: Schedule) -> None:
    assert load(dump(schedule), "written") == schedule


@given(SCHEDULES, st.randoms())
def test_schedule_order_is_independent_of_its_construction(schedule: Schedule, rng: object) -> None:
    shuffled = list(schedule.faults)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert schedule.with_faults(shuffled) == schedule
    assert [fault.at_s for fault in schedule.faults] == sorted(fault.at_s for fault in schedule.faults)


OF_MACHINES: dict[str, dict[str, object]] = {
    "bit_rot": {"what": "image"},
    "operator_command": {"what": "drain"},
    "cloud_trouble": {"how": "late", "late_s": 3.0},
    "bad_engine": {"how": "nan"},
}
"""Fields whose values are names of these kinds alone."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_json_form_with_its_name(kind: str) -> None:
    fields = {
        "host": "@preemptible/0", "a": "head", "b": "reserved-1", "process": "rollout", "for_s": 20.0,
        "factor": 2.0, "zone": "a", "message": "Dispatch", "by_s": -5.0, "how": "hang", "kills": 3,
        "every_s": 1.0, "notice_s": 30.0, "back_s": 5.0, "actor": "manager",
    }  # fmt: skip
    cls = KINDS[kind]
    wanted = {name: value for name, value in fields.items() if name in cls.__struct_fields__}
    if kind == "stay":
        wanted["host"] = "spot-1"
    wanted |= OF_MACHINES.get(kind, {})
    fault = msgspec.convert({"kind": kind, "at_s": 1.0, **wanted}, cls)
    assert f'"kind":"{kind}"' in to_json(fault)
    assert kind_of(fault) == kind
    assert kind in description(fault)
    assert msgspec.json.decode(to_json(fault), type=cls) == fault
    assert issubclass(cls, Fault)


def test_timed_fault_is_over_after_its_duration() -> None:
    assert Zombie(at_s=3.0, host="head", process="rollout", for_s=12.0).over_s == 15.0
    schedule = Schedule(faults=(KillProcess(at_s=40.0, host="head", process="rollout"),))
    assert schedule.over_s == 40.0
    assert Schedule().over_s == 0.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("faults = 5", "Expected `array`"),
        ("[[faults]]\nkind = 'meteor'\nat_s = 1.0", "kinds are kill_process"),
        ("[[faults]]\nkind = 'zombie'\nat_s = 1.0\nhost = 'head'\nprocess = 'rollout'\nfor_s = 2.0", ">= 10"),
        ("[[faults]]\nkind = 'kill_host'\nat_s = 1.0\nhost = '@nobody'", "matching regex"),
        ("[[faults]]\nkind = 'kill_host'\nat_s = -1.0\nhost = 'head'", ">= 0"),
        ("[[", "not TOML"),
    ],
)
def test_unreadable_schedule_error_gives_place_and_reason(text: str, problem: str) -> None:
    with pytest.raises(BadSchedule) as refused:
        load(text, "bad.toml")
    assert str(refused.value).startswith("bad.toml: ")
    assert problem in str(refused.value)
