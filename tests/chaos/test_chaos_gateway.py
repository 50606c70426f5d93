"""The gateway in campaigns: its checks, drawn calls, and whole runs with deaths."""

import random
from array import array
from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    Dispatched,
    FrameLogged,
    InstanceJoined,
    RequestsDue,
    TicketsRevoked,
    VersionPublished,
)
from gleaner.chaos.fault_sampler import CALLERS_HOST
from gleaner.chaos.faults import CrashActor, Hang, KillOnMessage, KillProcess, Partition
from gleaner.chaos.gateway_calls import Reading, body_of, drawn
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact
from gleaner.chaos.invariants.gateway_answers import GatewayAnswers
from gleaner.chaos.invariants.gateway_facts import CallOver, CallSent, GatewayCall, GatewaySeen, Received
from gleaner.chaos.invariants.gateway_requests import GatewayRequests
from gleaner.chaos.invariants.gateway_times import LEFT_S, GatewayTimes
from gleaner.chaos.invariants.shadow import Shadow
from gleaner.chaos.invariants.world_facts import HostLook, WorldSeen
from gleaner.chaos.kill_points import CALLED_BY_GATEWAY
from gleaner.chaos.plan import load
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.sim_run import run
from gleaner.supervisor import Message
from gleaner.supervisor.message import known_kinds

ENGINE, BATCH = "spot-1/engine", "generate-x"
NAME = f"{BATCH}/0/0"
CALL = GatewayCall(
    client="client-1",
    number=0,
    attempt=0,
    wire="completions",
    prompts=(array("I", [3]).tobytes(),),
    n=1,
    seed=7,
    max_tokens=3,
    temperature=1.0,
    top_p=1.0,
    stop="",
    stream=True,
    ids=True,
    logprobs=True,
    usage=True,
    rid="",
    deadline_s=10.0,
)
GOT = Received(
    tokens=[10, 11, 12],
    logprobs=[-1.0, -1.0, -1.0],
    text=" a b c",
    offsets=[0, 2, 4],
    finish="length",
    spans=[(0, 2), (1, 1)],
)


def commit(*messages: Message) -> Committed:
    return Committed(2.0, "head", "rollout/manager", 1, messages)


def frame(seq: int, token: int, ticket: int, *, last: bool = False) -> FrameLogged:
    return FrameLogged(
        instance=ENGINE, incarnation=5, seq=seq, tickets=array("I", [ticket]).tobytes(),
        tokens=array("I", [token]).tobytes(), logprobs=array("f", [-1.0]).tobytes(), flags=bytes([2 * last]),
    )  # fmt: skip


def begun(seed: int = 7, limit: int = 3) -> BatchSubmitted:
    prompt = Prompt(split="", index=0, tokens=(3,), seeds=(seed,))
    return BatchSubmitted(
        batch=BATCH, version=0, min_version=0, prompts=(prompt,), max_new_tokens=limit, scored=False
    )


def dispatched(ticket: int, version: int) -> Dispatched:
    return Dispatched(instance=ENGINE, incarnation=5, version=version, tickets=(ticket,), requests=(NAME,))


MOVED: list[Fact] = [
    commit(VersionPublished(version=0, root=b"r0", sources=("t",)), begun()),
    commit(InstanceJoined(instance=ENGINE, incarnation=5), dispatched(1, 0)),
    commit(frame(1, 10, 1), frame(2, 11, 1)),
    commit(TicketsRevoked(instance=ENGINE, incarnation=5, tickets=(1,))),
    commit(VersionPublished(version=1, root=b"r1", sources=("t",)), dispatched(2, 1)),
]
MADE: list[Fact] = [CallSent(1.0, CALL), *MOVED, commit(frame(3, 12, 2, last=True))]


def over(got: Received = GOT, call: GatewayCall = CALL, usage: tuple[int, int, int] = (1, 3, 4)) -> CallOver:
    return CallOver(4.0, call, 1.0, "whole", 200, "", (got,), usage)


def judged(facts: Sequence[Fact], most: int = 8) -> list[str]:
    """Violations of both checks; the shadow of the journal is kept as a jury keeps it."""
    shadow = Shadow()
    requests = GatewayRequests(shadow)
    checks: tuple[Check, ...] = (GatewayAnswers(requests, None), GatewayTimes(requests, most))
    found: list[str] = []
    for fact in facts:
        for check in checks:
            found += check.see(fact) if check.wants(fact) else ()
        if isinstance(fact, Committed):
            for message in fact.messages:
                found += [text for _, text in shadow.apply(message)]
    return found


def test_answer_of_a_moved_request_is_in_order() -> None:
    assert judged([*MADE, over()]) == []
    assert judged([*MADE, commit(BatchReleased(batch=BATCH)), over()]) == []  # forgotten before it was read
    cut = Received(tokens=[10], logprobs=[-1.0], text=" a", offsets=[0])
    broken = replace(over(cut), outcome="broken")
    assert judged([*MADE[:-1], broken]) == []


def other(**changes: object) -> Received:
    return replace(GOT, **changes)  # type: ignore[arg-type]  # fields of this struct


WRONGS: list[tuple[str, Sequence[Fact]]] = [
    ("position 2 another token", [*MADE, over(other(tokens=[10, 11, 11, 12]))]),
    ("position 1 another token", [*MADE, over(other(tokens=[10, 12]))]),
    ("3 tokens and 2 log-probs", [*MADE, over(other(logprobs=[-1.0, -1.0]))]),
    ("has the text", [*MADE, over(other(text=" a b b"))]),
    ("with 4 characters", [*MADE, over(other(text=" a b"))]),
    ("has the offsets", [*MADE, over(other(offsets=[0, 2, 5]))]),
    ("bears the versions", [*MADE, over(other(spans=[(0, 3)]))]),
    ("its versions count 2", [*MADE, over(other(spans=[(0, 2)]))]),
    ("expected ('length', None)", [*MADE, over(other(finish="stop"))]),
    ("has no end", [*MADE, over(other(finish=""))]),
    ("has the usage", [*MADE, over(usage=(1, 6, 7))]),
    ("the journal does not have it", [CallSent(1.0, CALL), over()]),
    ("no client asked", MOVED),
    ("another limit", [CallSent(1.0, CALL), commit(begun(limit=2))]),
    ("begun, then", [CallSent(1.0, CALL), commit(begun()), commit(begun())]),
    ("a chunk behind", [*MADE, replace(over(), extra="a chunk behind its end")]),
    ("refused with 404", [replace(over(), outcome="refused", status=404)]),
    ("refused with 503", [replace(over(), outcome="refused", status=503, error="tired")]),
    ("after 3.0 s", [*MADE, over(other(stop_reason="deadline"))]),
    ("met a defect", [replace(over(), outcome="refused", status=500)]),
    ("got the status 200, not 401", [*MADE, over(call=replace(CALL, wrong="key"))]),
]


@pytest.mark.parametrize(("text", "facts"), WRONGS, ids=[text for text, _ in WRONGS])
def test_wrong_answer_is_found(text: str, facts: Sequence[Fact]) -> None:
    if not isinstance(facts[0], CallSent) and facts is not MOVED:
        facts = [CallSent(1.0, CALL), *facts]
    found = judged(facts)
    assert any(text in one for one in found), found


def world(at_s: float, calm_s: float = 60.0) -> WorldSeen:
    look = HostLook(name="head", role="head", calm_s=calm_s, steady_s=calm_s)
    return WorldSeen(at_s, {"head": look}, {}, frozenset())


def left(call: GatewayCall = CALL) -> CallOver:
    return CallOver(4.0, call, 1.0, "left", 200, "", (Received(),))


def test_request_of_a_left_client_must_end() -> None:
    here, late_s = GatewaySeen(0.0, (9, 1), True), 4.0 + LEFT_S + 1.0
    goes_on = [here, CallSent(1.0, CALL), *MOVED]
    assert judged([*goes_on, left(), world(4.0 + LEFT_S - 0.5)]) == []
    assert "goes on" in judged([*goes_on, left(), world(late_s)])[0]
    assert judged([*goes_on, left(), world(late_s, calm_s=1.0)]) == []
    assert judged([*goes_on, left(), commit(RequestsDue(requests=(NAME,))), world(late_s)]) == []
    for life in ((10, 1), (9, 2)):  # a gateway whose process died, or whose actor crashed, could not cancel
        again = [GatewaySeen(4.5, life, True), world(late_s)]
        assert judged([*goes_on, left(), *again]) == []
    named = replace(CALL, rid="mine")
    assert judged([here, CallSent(1.0, named), *MOVED, left(named), world(late_s)]) == []


def test_call_must_be_over_within_its_deadline() -> None:
    assert judged([CallSent(1.0, CALL), world(16.0)]) == []
    assert "waits since" in judged([CallSent(1.0, CALL), world(20.0)])[0]
    assert judged([CallSent(1.0, CALL), world(20.0, calm_s=5.0)]) == []
    assert judged([CallSent(1.0, CALL), GatewaySeen(18.0, (1, 1), False), world(20.0)]) == []


def test_limit_refuses_only_where_it_is_reached() -> None:
    text = "2 requests are under way, as many as gateway.max_concurrent admits"
    refused = CallOver(2.0, CALL, 1.0, "refused", 503, text, (Received(),))
    second = replace(CALL, client="client-2", seed=100)
    assert "refused at the limit of 3" in judged([CallSent(1.0, CALL), refused], most=3)[0]
    assert judged([CallSent(1.0, CALL), CallSent(1.5, second), refused], most=2) == []


def test_reading_joins_chunks_and_keeps_extra_ones() -> None:
    reading = Reading(CALL)
    chunk = {"index": 0, "text": " a", "token_ids": [10], "logprobs": None}
    for piece in (b": alive\n\n", event({"choices": [chunk]}), event({"choices": [chunk]})):
        reading.feed(piece[:5])
        reading.feed(piece[5:])
    end = {"index": 0, "text": "", "token_ids": [], "finish_reason": "stop", "weight_versions": [[0, 2]]}
    reading.feed(event({"choices": [end]}))
    (got,) = reading.choices
    assert (got.tokens, got.text, got.finish, got.spans) == ([10, 10], " a a", "stop", [(0, 2)])
    assert reading.extra == ""
    reading.feed(event({"choices": [chunk]}))
    assert reading.extra == "a chunk of choice 0 behind its end"


def event(body: object) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def test_calls_are_drawn_of_every_manner() -> None:
    config = load("gateway").config
    calls = [drawn("client-1", number, random.Random(f"{number}"), config) for number in range(300)]
    assert calls == [drawn("client-1", n, random.Random(f"{n}"), config) for n in range(300)]
    assert {call.wire for call in calls} == {"completions", "chat"}
    assert {call.wrong for call in calls} == {"", "json", "field", "limit", "key", "size"}
    for named in ("rid", "stop", "leave_s", "pause_s", "stream", "usage", "logprobs"):
        assert {bool(getattr(call, named)) for call in calls} == {False, True}
    assert all(body_of(call, config) for call in calls)


def test_gateway_is_broken_only_where_there_are_clients() -> None:
    kinds = {kind for _, kind, _ in CALLED_BY_GATEWAY}
    assert kinds <= set(known_kinds())
    drawn_faults = [fault for seed in range(80) for fault in load("gateway").schedule(seed).faults]
    assert kinds <= {fault.message for fault in drawn_faults if isinstance(fault, KillOnMessage)}
    assert CALLERS_HOST in {fault.b for fault in drawn_faults if isinstance(fault, Partition)}
    for kind in (KillProcess, CrashActor, Hang):
        assert "gateway" in {fault.process for fault in drawn_faults if isinstance(fault, kind)}
    for name in ("ci", "singles"):
        others = [fault for seed in range(40) for fault in load(name).schedule(seed).faults]
        assert "gateway" not in {getattr(fault, "process", "") for fault in others}


DEATHS = (
    KillProcess(at_s=12.0, host="@preemptible/0", process="engine"),
    KillProcess(at_s=14.0, host="@head", process="rollout"),
    KillProcess(at_s=17.0, host="@head", process="gateway"),
    KillOnMessage(at_s=19.0, host="@head", process="gateway", message="Progress", count=2, moment="received"),
    Partition(at_s=20.0, a="@head", b=CALLERS_HOST, for_s=3.0),
)


def test_streams_equal_the_truth_through_deaths() -> None:
    loaded = load("hunt-gateway")
    outcome = run(loaded, 3, Schedule(seed=3, faults=DEATHS))
    assert outcome.broken == ()
    assert outcome.ended == "done"
    assert outcome.fired == {"kill_process": 3, "kill_on_message": 1, "partition": 1}
    for count in ("answered", "again", "left", "cut"):
        assert outcome.counts[f"gateway.{count}"] > 0, count
    assert run(loaded, 3, Schedule(seed=3, faults=DEATHS)).trace_hash == outcome.trace_hash
