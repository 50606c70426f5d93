"""The bench of recoveries: figures from a journal, and one death of a real manager."""

from array import array
from dataclasses import asdict

from bench.recovery import manager_deaths, page
from bench.recovery.engine_deaths import Death, Deaths
from bench.recovery.goals import goals
from bench.recovery.journal_tail import Resumption
from bench.recovery.manager_deaths import Return
from gleaner.actors.rollout.state.events import (
    Dispatched,
    FrameLogged,
    InstanceGone,
    InstanceJoined,
    TicketsRevoked,
)
from gleaner.transport.token_frame import Flag


def frame(instance: str, seq: int, *tickets: int, flags: tuple[int, ...] = ()) -> FrameLogged:
    count = len(tickets)
    return FrameLogged(
        instance=instance,
        incarnation=1,
        seq=seq,
        tickets=array("I", tickets).tobytes(),
        tokens=array("I", [7] * count).tobytes(),
        logprobs=array("f", [-0.5] * count).tobytes(),
        flags=bytes(flags or [0] * count),
    )


def dispatched(instance: str, tickets: tuple[int, ...], requests: tuple[str, ...]) -> Dispatched:
    return Dispatched(instance=instance, incarnation=1, version=1, tickets=tickets, requests=requests)


def killed_at_work() -> Resumption:
    seen = Resumption()
    for name in ("a", "b"):
        seen.see(InstanceJoined(instance=name, incarnation=1), 0.0)
    seen.see(dispatched("a", (1, 2, 3), ("r1", "r2", "r3")), 1.0)
    seen.see(frame("a", 1, 1, 2), 2.0)
    seen.kill("a")
    return seen


def test_requests_of_dead_instance_are_timed_by_next_token() -> None:
    seen = killed_at_work()
    resumed = seen.resumed
    assert resumed is not None
    assert seen.busy("a") == 2
    seen.see(frame("a", 2, 1, 2), 3.0)  # its last frame, which resumes nothing
    seen.see(InstanceGone(instance="a", incarnation=1, cause="killed"), 4.0)
    seen.see(dispatched("b", (1,), ("r3",)), 5.0)  # had not begun
    seen.see(dispatched("b", (2, 3), ("r1", "r2")), 6.0)
    seen.see(frame("b", 1, 1, 3), 7.0)
    seen.see(frame("b", 2, 1, 2, 3), 8.0)
    assert (resumed.count, resumed.gone, resumed.dispatched, resumed.first, resumed.last) == (2, 4, 6, 7, 8)


def test_request_ended_by_last_frames_is_not_waited_for() -> None:
    seen = killed_at_work()
    resumed = seen.resumed
    assert resumed is not None
    seen.see(frame("a", 2, 1, flags=(int(Flag.FINISHED),)), 3.0)
    seen.see(InstanceGone(instance="a", incarnation=1, cause="killed"), 4.0)
    seen.see(dispatched("b", (1,), ("r2",)), 5.0)
    seen.see(frame("b", 1, 1), 6.0)
    assert (resumed.count, resumed.last) == (1, 6.0)


def test_revoked_ticket_belongs_to_no_instance() -> None:
    seen = killed_at_work()
    seen.see(TicketsRevoked(instance="a", incarnation=1, tickets=(1,)), 3.0)
    assert seen.busy("a") == 1


def results() -> tuple[Deaths, list[Return]]:
    killed = [Death(4, 0.1, 0.15, 0.2, 0.4) for _ in range(29)] + [Death(4, 0.1, 0.2, 3.5, 4.0)]
    return (
        Deaths(killed, [Death(3, 3.1, 3.2, 3.3, 3.4)], 1000, 120, 0, 0),
        [
            Return(10_000, 500_000, 0.9, 1.8, 40, 25.0, 0, 0, 0.8),
            Return(10_000, 900_000, 2.1, 3.0, 40, 60.0, 0, 0, 1.1),
        ],
    )


def test_slowest_recoveries_decide_the_verdict() -> None:
    verdicts = {goal.what: goal.met for goal in goals(*results())}
    assert verdicts == {
        "an engine killed, until the first resumed token, median": True,
        "an engine killed, until the first resumed token, p99": False,
        "tokens lost": True,
        "tokens generated twice by dead engines": True,
        "the manager killed, until the first new frame is acknowledged, longest": False,
        "the oldest frame that was sent again": False,
        "tokens generated twice": True,
        "tokens lost by the manager's death": True,
    }


def test_section_has_a_line_per_kind_of_death() -> None:
    deaths, came = results()
    written = {
        "began": "now",
        "took_s": 9,
        "machine": {"load before the run": "0.10"},
        "deaths": asdict(deaths),
        "returns": [asdict(one) for one in came],
    }
    text = page.text(written)
    assert "| engine, SIGKILL | 30 | 0.100 s | 0.150 s | 0.200 s | 3.50 s | 3.50 s | 0.400 s |" in text
    assert "| engine, SIGSTOP | 1 | 3.10 s |" in text
    assert "| manager, SIGKILL, 10,000 requests in flight | 2 | - | - | 0.900 s |" in text
    assert "at most 1.10 s of processor time" in text
    assert "NOT met" in text
    assert "busy" not in text


def test_killed_manager_recovers_its_instances_without_loss(tmp_path) -> None:
    (one,) = manager_deaths.measure(tmp_path, 40, 1, 0.02, 0.3, lambda line: None)
    assert one.tokens > 0
    assert 0 < one.first_s <= one.all_s
    assert (one.generated_twice, one.lost) == (0, 0)
