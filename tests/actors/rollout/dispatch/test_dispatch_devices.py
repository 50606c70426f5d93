"""Instances that share a device: turns of dispatch, and the device's capacity."""

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.engine.builtin.host import cores
from gleaner.actors.protocol.device import Device
from gleaner.actors.rollout.dispatch.devices import ROUNDING, carried, crowds, turns
from gleaner.actors.rollout.dispatch.placement import Balancer, InstanceKind

HALF = Device(name="cores", share=0.5)
SPOT, RESERVED = InstanceKind.PREEMPTIBLE, InstanceKind.RESERVED
SEVEN = {7: b"root"}


def test_first_turn_has_what_each_device_carries() -> None:
    devices = {
        "a": HALF,
        "own": None,
        "b": HALF,
        "c": HALF,
        "other": Device(name="gpu", share=1.0),
        "d": HALF,
    }
    assert turns(devices, devices.__getitem__) == [["a", "own", "b", "other"], ["c", "d"]]


@given(
    st.lists(st.builds(Device, name=st.sampled_from("xyz"), share=st.sampled_from([0.2, 1 / 3, 0.5, 1.0])))
)
def test_turns_contain_each_instance_once_without_overload(devices: list[Device]) -> None:
    by_turn = turns(range(len(devices)), devices.__getitem__)
    assert sorted(one for turn in by_turn for one in turn) == list(range(len(devices)))
    for name in "xyz":
        shares = [devices[one].share for one in by_turn[0] if devices[one].name == name]
        assert sum(shares) <= 1.0 + ROUNDING
        assert bool(shares) == any(device.name == name for device in devices)


def test_fleet_is_bounded_by_shared_devices_only() -> None:
    assert carried([HALF, HALF, HALF]) == 2
    assert carried([HALF, Device(name="gpu", share=1.0)]) == 3
    assert carried([HALF, None]) == 0
    assert carried([]) == 0
    assert carried([Device(name="thirds", share=1 / 3)]) == 3


def test_device_is_crowded_beyond_what_it_carries() -> None:
    assert not crowds({"a": HALF, "b": HALF, "c": None}, HALF)
    assert crowds({"a": HALF, "b": HALF, "c": HALF}, HALF)
    assert not crowds({"a": HALF, "b": HALF, "c": HALF}, None)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_share_outside_zero_to_one_is_refused(share: float) -> None:
    body = msgspec.msgpack.encode({"name": "cores", "share": share})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(body, type=Device)


def test_engines_of_one_computer_share_its_cores() -> None:
    one, other = cores(1), cores(10_000)
    assert one.name == other.name
    assert one.share == 1 / len(os.sched_getaffinity(0))
    assert other.share == 1.0


# -- which instances get requests --


def fleet(*names: str, slots: int = 128, serving: tuple[str, ...] | None = None) -> Balancer:
    """Instances of two cores; names that begin with "r" are reserved instances."""
    made = Balancer(4)
    for name in names:
        made.joined(name, 1, RESERVED if name[0] == "r" else SPOT, slots, device=HALF)
        if serving is None or name in serving:
            made.serving(name, 1, 7, b"root")
    return made


def sent(balancer: Balancer, count: int) -> dict[str, int]:
    chosen = balancer.select(SEVEN, count)
    for name in set(chosen):
        balancer.dispatched(name, 1, chosen.count(name))
    return {name: chosen.count(name) for name in sorted(set(chosen))}


def test_first_turn_gets_all_requests_that_fit() -> None:
    assert sent(fleet("a", "b", "c", "r"), 256) == {"a": 128, "b": 128}


def test_next_instance_gets_requests_beyond_first_slots() -> None:
    assert sent(fleet("a", "b", "c", "r"), 300) == {"a": 128, "b": 128, "c": 22, "r": 22}
    assert sum(sent(fleet("a", "b", "c", "r", slots=64), 256).values()) == 256


def test_busy_instance_gets_more_before_an_idle_one() -> None:
    balancer = fleet("a", "b", "c")
    balancer.joined("d", 1, SPOT, 128, executing=100, device=HALF)
    balancer.serving("d", 1, 7, b"root")
    assert sent(balancer, 60) == {"a": 60}  # its share of 160 is 80, and d has more than that


def test_idle_instance_replaces_a_lost_one() -> None:
    balancer = fleet("a", "b", "c")
    assert sent(balancer, 100) == {"a": 50, "b": 50}
    balancer.gone("a", 1)
    assert sent(balancer, 50) == {"c": 50}


def test_trainer_engine_gets_few_requests_while_alone() -> None:
    balancer = fleet("a", "b", "r", serving=("r",))
    assert sent(balancer, 200) == {"r": 4}
    balancer.serving("a", 1, 7, b"root")
    assert sent(balancer, 196) == {"a": 100}


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 40), st.integers(0, 40), st.booleans()), min_size=1),
    st.integers(0, 300),
)
def test_no_request_exceeds_slots_of_first_turn(
    instances: list[tuple[bool, int, int, bool]], count: int
) -> None:
    balancer = Balancer(3)
    for number, (shares, slots, executing, serves) in enumerate(instances):
        device = HALF if shares else None
        balancer.joined(str(number), 1, SPOT, slots, executing=min(executing, slots), device=device)
        if serves:
            balancer.serving(str(number), 1, 7, b"root")
    ranked = sorted(balancer.instances.values(), key=lambda one: one.preference(SEVEN))
    first, *others = turns(ranked, lambda one: one.device)
    later = [one for turn in others for one in turn]
    chosen = balancer.select(SEVEN, count)
    shared = [one for one in first if one.device is not None]
    if all(one.serves(SEVEN) for one in first) and {one.id for one in later} & set(chosen):
        for one in shared:
            assert one.executing + chosen.count(one.id) >= one.slots, "its slots were not filled first"
    if all(one.serves(SEVEN) for one in ranked):
        free = sum(one.slots - one.executing for one in first)
        assert len(chosen) >= min(count, free), "a request waits beside a free slot"
