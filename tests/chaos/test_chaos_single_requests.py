"""Single requests in campaigns: checks, drawn callers, and a whole run."""

import hashlib
from array import array
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.requests import Generate, Generated, VersionNotReady, VersionSpan
from gleaner.actors.rollout.state.events import (
    Dispatched,
    FrameLogged,
    InstanceJoined,
    RequestsDue,
    TicketsRevoked,
    VersionPublished,
)
from gleaner.chaos.fault_sampler import CALLERS_HOST
from gleaner.chaos.faults import KillOnMessage, KillProcess, Partition
from gleaner.chaos.invariants.catalogue import jury_of
from gleaner.chaos.invariants.facts import Committed, Fact, RequestAnswered, RequestAsked, RunEnd
from gleaner.chaos.invariants.shadow import ShadowRequest
from gleaner.chaos.kill_points import CALLED
from gleaner.chaos.plan import load
from gleaner.chaos.recoveries import Recoveries
from gleaner.chaos.schedule import Schedule
from gleaner.chaos.sim_run import run
from gleaner.rlctl.audit.invariants import Evidence
from gleaner.supervisor import Message
from gleaner.supervisor.message import known_kinds

ENGINE = "spot-1/engine"
NAME = "generate-a/0/0"
SEED = 40
OLD, NEW = b"ro", b"new"
ASK = Generate(id="a", prompt=array("I", [3]).tobytes(), max_new_tokens=8, seed=SEED, wait_s=2.0)
TOKENS = array("I", [SEED, SEED + 2]).tobytes()  # the first of the old weights, the second of the new ones
LATER = replace(ASK, min_version=1)
EXACT = replace(ASK, exact_version=1)


def response_of(seed: int, root: bytes, count: int) -> bytes:
    return array("I", [seed + len(root) - 2 + at for at in range(count)]).tobytes()


def made_by(request: ShadowRequest, root: bytes, count: int) -> bytes:
    return response_of(request.seed, root, count)


def commit(*messages: Message) -> Committed:
    return Committed(2.0, "head", "rollout/manager", 1, messages)


def begun(batch: str = "generate-a", seed: int = SEED, min_version: int | None = 0) -> BatchSubmitted:
    prompt = Prompt(split="", index=0, tokens=(3,), seeds=(seed,))
    return BatchSubmitted(
        batch=batch, version=1, min_version=min_version, prompts=(prompt,), max_new_tokens=8, scored=False
    )


def dispatched(ticket: int, version: int) -> Dispatched:
    return Dispatched(instance=ENGINE, incarnation=5, version=version, tickets=(ticket,), requests=(NAME,))


def frame(seq: int, token: int, ticket: int, *, last: bool = False) -> FrameLogged:
    return FrameLogged(
        instance=ENGINE, incarnation=5, seq=seq, tickets=array("I", [ticket]).tobytes(),
        tokens=array("I", [token]).tobytes(), logprobs=array("f", [-1.0]).tobytes(), flags=bytes([2 * last]),
    )  # fmt: skip


def asked(request: Generate = ASK) -> RequestAsked:
    return RequestAsked(1.0, "caller-1", request)


def got(
    answer: Message | None, request: Generate = ASK, refusal: str = "", asked_s: float = 1.0
) -> RequestAnswered:
    return RequestAnswered(4.0, "caller-1", asked_s, request, answer, refusal)


WHOLE = Generated(
    id="a", status="stop", start=0, tokens=TOKENS, logprobs=b"\0" * 8,
    versions=(VersionSpan(version=0, count=1), VersionSpan(version=1, count=1)),
    version_start=0, version_end=1, sha256=hashlib.sha256(TOKENS).digest(),
)  # fmt: skip
REST = replace(ASK, attempt=2, accepted=1, accepted_sha256=hashlib.sha256(TOKENS[:4]).digest())
WRONG = replace(REST, accepted_sha256=b"x")
OTHER = replace(ASK, attempt=2, seed=SEED + 1)
MADE: list[Fact] = [
    asked(),
    commit(VersionPublished(version=0, root=OLD, sources=("t",)), begun()),
    commit(InstanceJoined(instance=ENGINE, incarnation=5), dispatched(1, 0)),
    commit(frame(1, SEED, 1)),
    commit(TicketsRevoked(instance=ENGINE, incarnation=5, tickets=(1,))),
    commit(VersionPublished(version=1, root=NEW, sources=("t",)), dispatched(2, 1)),
]
ENDED: list[Fact] = [*MADE, commit(frame(2, SEED + 2, 2, last=True))]


def judged(facts: Sequence[Fact]) -> list[str]:
    jury = jury_of(made_by, 1)
    for fact in facts:
        jury.see(fact)
    assert {found.check for found in jury.found} <= {"single requests"}
    return [found.text for found in jury.found]


def test_repeated_single_request_has_one_answer() -> None:
    rest = replace(WHOLE, start=1, tokens=TOKENS[4:], logprobs=b"\0" * 4)
    story = [
        *ENDED, got(None), got(WHOLE), got(WHOLE, replace(ASK, attempt=2)), got(rest, REST),
        got(None, WRONG, "its first tokens are others"), got(None, OTHER, "used with different contents"),
    ]  # fmt: skip
    assert judged(story) == []


CLOSED = VersionNotReady(target=1, exact=False, applied=0, retryable=True)
WRONGS: list[tuple[str, Sequence[Fact]]] = [
    ("before its end was journaled", [*MADE, got(WHOLE)]),
    ("the journal does not have it", [asked(), got(WHOLE)]),
    ("and they differ", [*ENDED, got(replace(WHOLE, tokens=TOKENS[4:] + TOKENS[:4]))]),
    ("the digest of other tokens", [*ENDED, got(replace(WHOLE, sha256=b"x"))]),
    ("from 0 on was answered with a from 1 on", [*ENDED, got(replace(WHOLE, start=1))]),
    ("bears the versions [(0, 1)]", [*ENDED, got(replace(WHOLE, versions=WHOLE.versions[:1]))]),
    ("goes from version 1 to 1", [*ENDED, got(replace(WHOLE, version_start=1))]),
    ("has the status length, expected stop", [*ENDED, got(replace(WHOLE, status="length"))]),
    ("its first 1 tokens are others", [*ENDED, got(WHOLE, WRONG)]),
    ("it was used with different contents", [*ENDED, got(WHOLE, OTHER)]),
    ("was refused without reason", [asked(), got(None, ASK, "no")]),
    ("was refused without reason", [*ENDED, got(WHOLE), got(None, REST, "others")]),
    ("no caller requested b", [asked(), commit(begun("generate-b"))]),
    ("was begun at 2.0 s, and again", [asked(), commit(begun()), commit(begun())]),
    ("with other contents than it was asked for", [asked(), commit(begun(seed=SEED + 1))]),
    ("with other contents than it was asked for", [asked(LATER), commit(begun(min_version=0))]),
    ("with other contents than it was asked for", [asked(EXACT), commit(begun(min_version=1))]),
    ("was begun at 2.0 s", [asked(LATER), commit(begun(min_version=1)), got(CLOSED, LATER, asked_s=3.0)]),
    ("not ready is 1", [asked(replace(ASK, min_version=2)), got(CLOSED, replace(ASK, min_version=2))]),
    ("and version 1 is served", [asked(LATER), got(replace(CLOSED, applied=1), LATER)]),
    ("and waited 1.5 s", [asked(LATER), got(CLOSED, LATER, asked_s=2.5)]),
    ("cannot come any more", [asked(LATER), got(replace(CLOSED, retryable=False), LATER)]),
    ("cannot come any more", [asked(EXACT), got(replace(CLOSED, exact=True, retryable=False), EXACT)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "story"), WRONGS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_answer_that_breaks_the_contract_is_reported(problem: str, story: Sequence[Fact]) -> None:
    found = judged(story)
    assert any(problem in text for text in found), found


def test_tokens_outside_the_gate_are_reported() -> None:
    made = [asked(LATER), *MADE[1:], *ENDED[len(MADE) :], got(WHOLE, LATER)]
    assert any("has tokens of version 0; asked for was 1 or later" in text for text in judged(made))


def test_closed_gate_is_no_violation() -> None:
    assert judged([asked(LATER), got(CLOSED, LATER)]) == []
    newest = commit(VersionPublished(version=2, root=NEW, sources=("t",)))
    replaced = VersionNotReady(target=1, exact=True, applied=2, retryable=False)
    assert judged([asked(EXACT), newest, got(replaced, EXACT)]) == []


def test_overdue_single_request_is_reported() -> None:
    def left(virtual_s: float, *more: Fact) -> list[str]:
        jury = jury_of(made_by, 1)
        for fact in [*MADE, *more]:
            jury.see(fact)
        ending = RunEnd(ended=True, virtual_s=virtual_s, deadline_s=900.0, quiet_s=virtual_s)
        found = jury.close(Evidence(steps=0, requests_per_step=1, complete=True), ending)
        return [it.text for it in found if it.check == "single requests"]

    assert left(60.0) == []
    (text,) = left(200.0)
    assert "had 60 s and no answer in 198.0 s" in text
    due = commit(RequestsDue(requests=(NAME,)), frame(2, SEED + 2, 2, last=True))
    assert left(200.0, due, got(replace(WHOLE, status="deadline"))) == []


def test_request_expired_before_first_token_is_answered_empty() -> None:
    none = replace(
        WHOLE, status="deadline", tokens=b"", logprobs=b"", versions=(), version_start=None,
        version_end=None, sha256=hashlib.sha256(b"").digest(),
    )  # fmt: skip
    due = commit(RequestsDue(requests=(NAME,)))
    assert judged([asked(), commit(begun()), due, got(none)]) == []


def test_single_request_recoveries_are_counted_from_callers() -> None:
    found = Recoveries()
    lifes: list[Callable[[], None]] = [
        lambda: found.committed(commit(begun())),
        lambda: found.answered(got(None)),
        lambda: found.committed(Committed(3.0, "head", "rollout/manager", 2, ())),
        lambda: found.answered(got(WHOLE)),
        lambda: found.answered(got(WHOLE, REST)),
        lambda: found.answered(got(CLOSED, LATER)),
        lambda: found.answered(got(None, WRONG, "others")),
    ]
    for one in lifes:
        one()
    assert found.counts() == {
        "singles.answered": 2,
        "singles.kept": 2,
        "singles.not_ready": 1,
        "singles.refused": 1,
        "singles.resumed": 1,
        "singles.retried": 1,
        "singles.several_versions": 2,
    }


def test_callers_messages_and_links_are_broken_too() -> None:
    kinds = {kind for _, kind, _ in CALLED}
    assert kinds == {"Generate", "PublishVersion"} <= set(known_kinds())
    singles, ci = load("singles"), load("ci")
    drawn = [fault for seed in range(100) for fault in singles.schedule(seed).faults]
    assert kinds <= {fault.message for fault in drawn if isinstance(fault, KillOnMessage)}
    assert CALLERS_HOST in {fault.b for fault in drawn if isinstance(fault, Partition)}
    others = [fault for seed in range(100) for fault in ci.schedule(seed).faults]
    assert not kinds & {fault.message for fault in others if isinstance(fault, KillOnMessage)}


def test_callers_get_answers_after_manager_death() -> None:
    faults = (
        KillOnMessage(
            at_s=6.0, host="head", process="rollout", message="Generate", count=3, moment="replied"
        ),
        KillProcess(at_s=9.0, host="@preemptible/0", process="engine"),
        Partition(at_s=10.0, a="head", b=CALLERS_HOST, for_s=3.0),
    )
    outcome = run(load("hunt-singles"), 3, Schedule(seed=3, faults=faults))
    assert outcome.broken == ()
    assert outcome.ended == "done"
    assert outcome.fired == {"kill_on_message": 1, "kill_process": 1, "partition": 1}
    for count in ("answered", "retried", "kept", "refused", "not_ready"):
        assert outcome.counts[f"singles.{count}"] > 0, count
