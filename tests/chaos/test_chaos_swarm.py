"""Drawing of faults: deterministic, complete, and bearable for a job."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gleaner.actors.protocol.balancer
import gleaner.actors.protocol.cluster
import gleaner.actors.protocol.instances
import gleaner.actors.protocol.requests
import gleaner.actors.protocol.reward
import gleaner.actors.protocol.rollout
import gleaner.actors.protocol.training
import gleaner.actors.protocol.weights  # noqa: F401 (all of them for the table of kinds)
from gleaner.chaos.availability import as_trace, stays
from gleaner.chaos.bounds import Bounds, bearable, bounds_of
from gleaner.chaos.coverage import BY_NAME
from gleaner.chaos.fault_scenarios import AIMS, BY_PATH
from gleaner.chaos.fault_targets import FaultTargets
from gleaner.chaos.faults import (
    FAIL_LOAD,
    FOREIGN_RESULT,
    KINDS,
    MACHINE_KINDS,
    KillHost,
    KillOnMessage,
    KillProcess,
    Notice,
    RestartStorm,
    Stay,
    kind_of,
)
from gleaner.chaos.kill_points import GOT, SENT
from gleaner.chaos.schedule import dump
from gleaner.chaos.shapes import SHAPES, named, wanted
from gleaner.chaos.swarm import Options, draw
from gleaner.configs.schema import Config, Fleet
from gleaner.configs.trace import Event, Trace, parse
from gleaner.supervisor.message import known_kinds

SEEDS = st.integers(0, 2**40)
TRACE = parse(
    "t_seconds,event,instance_id\n0,add,n1\n0,add,n2\n600,notice,n1\n700,remove,n1\n900,add,n1\n1500,remove,n2\n",
    "two.csv",
)


@given(SEEDS)
@settings(max_examples=60)
def test_seed_draws_the_same_schedule_each_time(seed: int) -> None:
    once = draw(seed, FaultTargets(), Options(), Bounds(), {"two": TRACE})
    assert dump(once) == dump(draw(seed, FaultTargets(), Options(), Bounds(), {"two": TRACE}))
    assert once.seed == seed


@given(SEEDS, st.integers(0, 4), st.booleans())
@settings(max_examples=150)
def test_faults_end_by_horizon_and_reserved_host_returns(
    seed: int, preemptible: int, head_returns: bool
) -> None:
    options = Options(calm=0.0, share_on=0.6, gap_s=(0.5, 4.0))
    terrain = FaultTargets(preemptible=preemptible, head_returns=head_returns)
    schedule = draw(seed, terrain, options, Bounds())
    assert len(schedule.faults) <= options.max_faults
    for fault in schedule.faults:
        assert options.begin_s <= fault.at_s
        assert fault.over_s <= options.horizon_s or isinstance(fault, Notice)
        if isinstance(fault, KillHost) and not fault.host.startswith("@preemptible"):
            assert fault.back_s > 0
            assert head_returns or fault.host != "@head"
        if not preemptible:
            assert "preemptible" not in dump(schedule)


def test_every_kind_is_drawn_and_options_vary_by_seed() -> None:
    drawn = [draw(seed, FaultTargets(), Options(), Bounds(), {"two": TRACE}) for seed in range(200)]
    seen = {kind_of(fault) for schedule in drawn for fault in schedule.faults}
    assert seen == set(KINDS) - {FAIL_LOAD, FOREIGN_RESULT} - MACHINE_KINDS
    mixes = {frozenset(kind_of(fault) for fault in schedule.faults) for schedule in drawn}
    assert len(mixes) > 100
    assert any(not schedule.faults for schedule in drawn)


def test_share_of_runs_draws_machine_faults_and_leaves_the_others_as_they_were() -> None:
    options = Options(machine_share=0.2)
    mixed = [draw(seed, FaultTargets(), options, Bounds()) for seed in range(200)]
    plain = [draw(seed, FaultTargets(), Options(), Bounds()) for seed in range(200)]
    has = [any(kind_of(fault) in MACHINE_KINDS for fault in schedule.faults) for schedule in mixed]
    assert 20 < sum(has) < 60
    assert 140 < sum(one == other for one, other in zip(mixed, plain, strict=True)) < 180


def test_every_shape_of_every_kind_is_drawn() -> None:
    terrain = FaultTargets(head_returns=True, head_durable=True)
    drawn = [
        draw(seed, terrain, options, Bounds())
        for seed in range(400)
        for options in (Options(), Options(kinds=tuple(sorted(MACHINE_KINDS))))
    ]
    seen = {shape for schedule in drawn for fault in schedule.faults for shape in named(fault)}
    assert seen == set(wanted(tuple(KINDS), head_returns=True))
    assert not set(SHAPES) - set(KINDS)
    assert len(wanted(("kill_host", "reset"), head_returns=False)) == 2


def test_aim_adds_faults_that_end_in_its_time() -> None:
    plain = Options(calm=0.0, horizon_s=45.0)
    for aim in AIMS:
        options = msgspec.structs.replace(plain, aims=(aim.path,), aim_share=1.0)
        for seed in range(40):
            drawn = draw(seed, FaultTargets(), options, Bounds())
            added = set(drawn.faults) - set(draw(seed, FaultTargets(), plain, Bounds()).faults)
            assert added or aim.path in ("rest_for_one", "revoked", "rewind")  # too many deaths
            if added:
                begin_s = min(fault.at_s for fault in added)
                assert all(
                    isinstance(it, Notice) or it.over_s <= begin_s + aim.lasts_s + 0.01 for it in added
                )
    assert set(BY_PATH) <= set(BY_NAME)
    with pytest.raises(ValueError, match="there is none at levitation"):
        Options(aims=("levitation",))


def test_aim_strikes_preemptible_hosts_when_there_is_a_trace() -> None:
    options = Options(
        calm=0.0, aims=("give up",), aim_share=1.0, trace_share=1.0, kinds=("stay", "restart_storm")
    )
    drawn = [draw(seed, FaultTargets(), options, Bounds(), {"two": TRACE}) for seed in range(30)]
    named_hosts = {
        fault.host
        for schedule in drawn
        for fault in schedule.faults
        if isinstance(fault, RestartStorm) and not fault.host.startswith("@")
    }
    assert named_hosts == {"n1", "n2"}


def test_only_requested_kinds_are_drawn() -> None:
    options = Options(kinds=("reset", "disk_full"), calm=0.0)
    drawn = [draw(seed, FaultTargets(), options, Bounds()) for seed in range(30)]
    assert {kind_of(fault) for schedule in drawn for fault in schedule.faults} == {"reset", "disk_full"}


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no meteor"):
        Options(kinds=("meteor",))
    with pytest.raises(ValueError, match="horizon_s"):
        Options(begin_s=5.0, horizon_s=5.0)


@given(
    st.lists(st.floats(0, 200), max_size=30),
    st.lists(st.floats(0, 200), max_size=3),
    st.lists(st.tuples(st.floats(0, 200), st.integers(2, 6)), max_size=3),
)
def test_reserved_host_deaths_stay_within_restart_intensity(
    kills: list[float], lurking: list[float], storms: list[tuple[float, int]]
) -> None:
    bounds = Bounds(kills=4, within_s=60.0)
    kept = bearable(
        [
            *(KillProcess(at_s=at_s, host="@reserved", process="trainer") for at_s in kills),
            *(KillOnMessage(at_s=at_s, host="@reserved", process="trainer", message="X") for at_s in lurking),
            *(
                RestartStorm(at_s=at_s, host="@reserved", process="trainer", kills=n, every_s=1.0)
                for at_s, n in storms
            ),
            *(KillProcess(at_s=at_s, host="@preemptible/1", process="engine") for at_s in kills),
            *(KillProcess(at_s=at_s, host="spot-1", process="engine") for at_s in kills),
        ],
        bounds,
    )
    reserved = [fault for fault in kept if fault.host == "@reserved"]  # type: ignore[union-attr]
    waiting = sum(isinstance(fault, KillOnMessage) for fault in reserved)
    times = sorted(
        fault.at_s + n * getattr(fault, "every_s", 0.0)
        for fault in reserved
        if not isinstance(fault, KillOnMessage)
        for n in range(getattr(fault, "kills", 1))
    )
    for start in times:
        assert sum(start <= at_s < start + 60.0 for at_s in times) + waiting <= 4
    assert len(kept) - len(reserved) == 2 * len(kills)


def test_job_bounds_leave_one_restart_to_spare() -> None:
    config = Config(fleet=Fleet(restarts=7, restarts_within_s=30.0))
    assert bounds_of(config) == Bounds(kills=6, within_s=30.0)


def test_messages_that_trigger_kills_exist() -> None:
    moments = [*GOT.values(), *SENT.values()]
    unknown = {message for messages in moments for message in messages} - set(known_kinds())
    assert not unknown


def test_trace_becomes_stays_and_back() -> None:
    found = stays(TRACE, from_s=0.0, for_s=2000.0, speed=10.0, hosts=2)
    assert found[0] == Stay(host="n1", at_s=0.0, for_s=70.0, notice_s=10.0)
    back = as_trace(found, "back")
    assert back is not None
    events = [(round(event.t_s, 6), event.event, event.instance) for event in back.events]
    assert (60.0, Event.NOTICE, "n1") in events
    assert (150.0, Event.REMOVE, "n2") in events
    assert events.count((90.0, Event.ADD, "n1")) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 100), st.floats(0.1, 50), st.floats(0, 60)),
        max_size=12,
    )
)
def test_stays_always_make_a_valid_production_trace(
    found: list[tuple[str, float, float, float]],
) -> None:
    made = as_trace(
        [Stay(host=h, at_s=at, for_s=n, notice_s=notice_s) for h, at, n, notice_s in found], "made"
    )
    if made is None:
        assert not found
        return
    rows = "".join(f"{event.t_s!r},{event.event.value},{event.instance}\n" for event in made.events)
    assert len(parse(f"t_seconds,event,instance_id\n{rows}", "made.csv").events) == len(made.events)


def test_real_traces_become_schedules_of_stays() -> None:
    folder = Path(__file__).parents[2] / "configs" / "traces"
    for path in sorted(folder.glob("*.csv")):
        trace = Trace(path.stem, parse(path.read_text(), path.name).events)
        found = stays(trace, from_s=0.0, for_s=trace.end_s + 1.0, speed=1.0, hosts=100)
        assert len(found) == sum(event.event is Event.ADD for event in trace.events)


def test_schedule_survives_the_round_trip_to_workers() -> None:
    schedule = draw(7, FaultTargets(), Options(calm=0.0), Bounds(), {"two": TRACE})
    assert msgspec.json.decode(msgspec.json.encode(schedule), type=type(schedule)) == schedule


def test_share_of_schedules_has_an_order_seed_and_keeps_it() -> None:
    options = Options(order_share=0.25)
    drawn = [draw(seed, FaultTargets(), options, Bounds()) for seed in range(400)]
    ordered = [schedule for schedule in drawn if schedule.order]
    assert 60 < len(ordered) < 140
    assert len({schedule.order for schedule in ordered}) == len(ordered)
    assert all(schedule.with_faults(schedule.faults[:1]).order == schedule.order for schedule in ordered)
    assert not any(draw(seed, FaultTargets(), Options(order_share=0.0), Bounds()).order for seed in range(50))
