"""A shared reward service in campaigns: which runs have one, what the check finds, a whole run."""

from array import array
from collections.abc import Iterable

from gleaner.actors.names import REWARD
from gleaner.actors.protocol.reward import BatchEnded, CancelScores, Score, Verdict
from gleaner.chaos.invariants.facts import Fact, MessagePassed
from gleaner.chaos.invariants.service_facts import CallBegan, CallEnded, ServiceSeen, response_key
from gleaner.chaos.invariants.shared_service import AGAIN_S, DIED_S, GONE_S, SharedServiceCalls
from gleaner.chaos.invariants.world_facts import HostLook, WorldSeen
from gleaner.chaos.plan import SHARED, load
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.sim_run import run
from gleaner.configs.schema import Config, Share
from gleaner.supervisor import Message

TOKENS = array("I", [3, 4]).tobytes()
RESPONSE = response_key("train", 1, TOKENS)
MANAGER = "rollout/manager"


def passed(at_s: float, message: Message, way: str = "in", process: str = "head/reward") -> MessagePassed:
    return MessagePassed(at_s, process, way, "ask", MANAGER, REWARD, message)


def asked(at_s: float, request: str = "a") -> Fact:
    return passed(at_s, Score(request=request, split="train", index=1, tokens=TOKENS, batch="step-1"))


def began(at_s: float, number: int = 1, response: bytes = RESPONSE) -> Fact:
    return CallBegan(at_s, number, "head/reward#7", "head", response)


def looked(at_s: float, calm_s: float = 100.0) -> Fact:
    return WorldSeen(at_s, {"head": HostLook(name="head", role="head", calm_s=calm_s)}, {}, frozenset(), True)


def found(facts: Iterable[Fact]) -> list[str]:
    check = SharedServiceCalls(Config())
    return [text for fact in facts for text in check.see(fact)]


def test_call_of_a_dropped_response_is_found_when_it_lasts() -> None:
    dropped = [asked(1.0), began(2.0), passed(3.0, CancelScores(requests=["a"]))]
    late_s = 3.0 + GONE_S + 0.1
    assert not found([*dropped, CallEnded(4.0, 1, left=True), looked(late_s)])
    assert not found([*dropped, looked(late_s, calm_s=1.0)])
    assert found([*dropped, looked(late_s)]) == [
        "a response is not needed for 3.1 s, and still a call under way"
    ]


def test_call_of_an_ended_batch_is_found_when_it_lasts() -> None:
    ended = [asked(1.0), began(2.0), passed(3.0, BatchEnded(batch="step-1"))]
    assert len(found([*ended, looked(20.0), looked(21.0)])) == 1
    assert not found([*ended, asked(3.5, "b"), looked(20.0)])


def test_cancel_inside_the_service_says_nothing_of_the_job() -> None:
    own = passed(3.0, CancelScores(requests=["a"]), "local", "scores/service")
    assert not found([asked(1.0), began(2.0), own, looked(30.0)])


def test_response_whose_call_failed_is_found_when_no_other_begins() -> None:
    failed = [asked(1.0), began(2.0), CallEnded(3.0, 1, left=True)]
    late_s = 3.0 + AGAIN_S + 0.1
    assert not found([*failed, looked(3.0 + AGAIN_S)])
    assert not found([*failed, began(5.0, 2), looked(late_s)])
    verdict = Verdict(request="a", score=1.0, status="ok", detail="")
    assert not found([*failed, passed(4.0, verdict, "out"), looked(late_s)])
    (text,) = found([*failed, looked(late_s)])
    assert text.startswith("a has no call of the service for")


def test_call_beyond_the_bound_is_found() -> None:
    most = Share().max_calls
    calls = [began(1.0, number, number.to_bytes(2)) for number in range(most + 1)]
    assert not found(calls[:-1])
    assert found(calls) == [
        f"head/reward#7 has {most + 1} calls of the service under way, at most {most} may be"
    ]


def test_items_without_a_call_are_found_when_they_stay_at_the_service() -> None:
    def looks(*items: int, since_s: float = 0.0) -> list[Fact]:
        return [ServiceSeen(since_s + 2.0 * at, count, 100.0) for at, count in enumerate(items)]

    base = [looked(0.0), asked(0.0), began(0.0)]
    assert not found([*base, *looks(1, 1, 1, 1)])
    assert not found([*base, *looks(2, 2, 1, 2, 2)])
    assert len(found([*base, *looks(2, 2, 2)])) == 1
    died = [looked(0.0), asked(0.0), began(0.0), CallEnded(0.0, 1, left=True, died=True)]
    assert not found([*died, *looks(1, 1, 1, 1)])
    assert len(found([*died, *looks(1, 1, 1, since_s=DIED_S + 1.0)])) == 1


def test_share_of_the_runs_has_a_service_and_faults_there() -> None:
    loaded = load("rewards")
    shared = [seed for seed in range(60) if loaded.config_of(seed).reward.share.with_]
    assert 10 < len(shared) < 30
    assert loaded.config_of(shared[0]).reward.share.with_ == SHARED["with"]
    places = {
        seed: {getattr(fault, "host", "") for fault in loaded.schedule(seed).faults} for seed in range(60)
    }
    assert any("@scores" in places[seed] for seed in shared)
    assert not any("@scores" in places[seed] for seed in places.keys() - set(shared))


def test_job_whose_responses_a_service_scores_holds_every_check() -> None:
    report = run(load("hunt-shared"), 1, Schedule(seed=1))
    assert report.ended == "done"
    assert not report.broken
