"""FleetPolicy: which hosts run by trace and N_prem, and its laws."""

from hypothesis import example, given
from hypothesis import strategies as st

from gleaner.actors.cluster.fleet import FleetAction, FleetPolicy, KillHost, NoticeHost, StartHost
from gleaner.configs.trace import Availability, parse

TRACE = """t_seconds,event,instance_id
0,add,a
0,add,b
10,remove,a
20,add,c
30,notice,b
40,remove,b
50,add,a
60,notice,a
"""


def policy(n_prem_max: int = 3, begin_s: float = 0.0, trace: str = TRACE) -> FleetPolicy:
    return FleetPolicy(
        Availability(parse(trace, "test")), n_prem_max=n_prem_max, notice_s=5.0, begin_s=begin_s
    )


def step(fleet: FleetPolicy, time_s: float) -> list[FleetAction]:
    return [*fleet.advance(time_s), *fleet.allocate(time_s)]


def test_hosts_at_trace_start_run_before_its_clock() -> None:
    assert step(policy(), 0.0) == [StartHost("a"), StartHost("b")]


def test_removal_kills_and_notice_has_remaining_time() -> None:
    fleet = policy()
    step(fleet, 0.0)
    assert step(fleet, 10.0) == [KillHost("a")]
    fleet.exited("a", 10.1, in_order=False)
    assert step(fleet, 20.0) == [StartHost("c")]
    assert step(fleet, 31.0) == [NoticeHost("b", 9.0)]
    assert step(fleet, 40.0) == [KillHost("b")]


def test_noticed_host_that_left_is_not_started_again() -> None:
    fleet = policy()
    step(fleet, 0.0)
    step(fleet, 30.0)
    fleet.exited("b", 33.0, in_order=True)
    assert KillHost("b") not in step(fleet, 45.0)
    assert "b" not in fleet.running


def test_notice_without_removal_ends_after_configured_time() -> None:
    fleet = policy(begin_s=50.0)
    step(fleet, 50.0)
    assert step(fleet, 60.0) == [NoticeHost("a", 5.0)]
    assert step(fleet, 64.9) == []
    assert step(fleet, 65.0) == [KillHost("a")]


def test_surplus_hosts_are_neither_started_nor_killed() -> None:
    fleet = policy()
    fleet.n_prem = 1
    assert step(fleet, 0.0) == [StartHost("a")]
    fleet.n_prem = 2
    assert step(fleet, 1.0) == [StartHost("b")]
    fleet.n_prem = 0
    assert step(fleet, 9.0) == []
    assert fleet.running == ["a", "b"]


def test_host_that_was_not_started_counts_and_goes_back_where_it_is_one_too_many() -> None:
    fleet = policy()
    fleet.n_prem = 1
    assert step(fleet, 0.0) == [StartHost("a")]
    fleet.n_prem = 2
    assert fleet.found(["a", "stranger"], 1.0) == []
    assert step(fleet, 1.0) == []  # instead of b
    assert fleet.found(["a", "stranger", "third"], 2.0) == [KillHost("third")]
    assert fleet.found(["a", "stranger", "third"], 2.1) == []  # it is on its way
    fleet.exited("third", 3.0, in_order=False)
    assert fleet.running == ["a", "stranger"]


def test_host_delivered_while_the_head_was_away_goes_back_if_it_is_one_too_many() -> None:
    running = ["a-stranger", "spot-1", "spot-2"]
    fleet = FleetPolicy(None, n_prem_max=2, notice_s=30.0, running=running)
    fleet.n_prem = 1
    assert fleet.found(running, 1.0) == [KillHost("a-stranger")]
    assert fleet.found(running, 1.2) == []
    fleet.exited("a-stranger", 2.0, in_order=False)
    assert fleet.running == ["spot-1", "spot-2"]  # more than are wished for now: they stay
    whole = FleetPolicy(None, n_prem_max=3, notice_s=30.0, running=running)
    assert whole.found(running, 1.0) == []


def test_available_host_starts_when_another_host_ends() -> None:
    fleet = policy(n_prem_max=1)
    assert step(fleet, 0.0) == [StartHost("a")]
    assert step(fleet, 10.0) == [KillHost("a")]
    fleet.exited("a", 10.0, in_order=False)
    assert step(fleet, 10.0) == [StartHost("b")]


def test_failing_host_is_started_with_growing_delays() -> None:
    fleet = policy(n_prem_max=1, trace="t_seconds,event,instance_id\n0,add,a\n")
    now_s, starts = 0.0, []
    while now_s < 20.0:
        for action in fleet.allocate(now_s):
            starts.append(now_s)
            fleet.exited(action.name, now_s, in_order=False)
        now_s += 0.5
    assert starts == [0.0, 1.0, 3.0, 7.0, 15.0]


def test_host_added_while_killed_starts_at_once() -> None:
    trace = "t_seconds,event,instance_id\n0,add,a\n5,remove,a\n5,add,a\n"
    fleet = policy(trace=trace)
    step(fleet, 0.0)
    assert step(fleet, 5.0) == [KillHost("a")]
    fleet.exited("a", 5.1, in_order=False)
    assert step(fleet, 5.1) == [StartHost("a")]


def test_resumed_fleet_starts_where_the_trace_stopped() -> None:
    assert step(policy(begin_s=35.0), 35.0) == [StartHost("c")]  # b already has its notice


def test_lost_hosts_are_replaced_without_a_trace() -> None:
    fleet = FleetPolicy(None, n_prem_max=2, notice_s=5.0)
    assert fleet.allocate(0.0) == [StartHost("spot-1"), StartHost("spot-2")]
    fleet.exited("spot-1", 10.0, in_order=True)
    assert fleet.allocate(10.5) == []
    assert fleet.allocate(11.0) == [StartHost("spot-1")]


@st.composite
def traces(draw: st.DrawFn) -> str:
    rows, time_s, up, noticed = ["t_seconds,event,instance_id", "0,add,a"], 0, {"a"}, set[str]()
    for _ in range(draw(st.integers(0, 30))):
        time_s += draw(st.integers(0, 3))
        name = draw(st.sampled_from("abcd"))
        if name not in up:
            rows.append(f"{time_s},add,{name}")
            up.add(name)
        elif name not in noticed and draw(st.booleans()):
            rows.append(f"{time_s},notice,{name}")
            noticed.add(name)
        else:
            rows.append(f"{time_s},remove,{name}")
            up.discard(name)
            noticed.discard(name)
    return "\n".join(rows) + "\n"


@example(  # found once: removed twice between two reads of the trace
    trace="t_seconds,event,instance_id\n0,add,a\n1,remove,a\n1,add,a\n1,remove,a\n",
    n_prem_max=1,
    bounds=[1, 0],
)
@given(trace=traces(), n_prem_max=st.integers(0, 4), bounds=st.lists(st.integers(0, 4), max_size=100))
def test_hosts_start_only_when_offered_and_within_bound(
    trace: str, n_prem_max: int, bounds: list[int]
) -> None:
    fleet = policy(n_prem_max=n_prem_max, trace=trace)
    offers = Availability(parse(trace, "test"))
    running: set[str] = set()
    for time_s, bound in enumerate(bounds):
        fleet.n_prem = bound
        for action in step(fleet, float(time_s)):
            if isinstance(action, StartHost):
                assert action.name not in running
                running.add(action.name)
                assert len(running) <= min(bound, n_prem_max)
                assert action.name in offers.available_at(time_s)
            elif isinstance(action, KillHost):
                assert action.name in running
                running.discard(action.name)
                fleet.exited(action.name, float(time_s), in_order=False)
        assert set(fleet.running) == running
