"""The invariant checks, on hand-written histories.

A complete history has no violation; each broken promise is reported by its check.
"""

import zlib
from array import array
from collections.abc import Iterable, Sequence

import pytest

from gleaner.actors.cluster.state_manager import Rewound
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt, Span
from gleaner.actors.protocol.cluster import StepTrained, TrainedSample
from gleaner.actors.protocol.instances import Dispatch, NotLoaded, Serving, Work
from gleaner.actors.protocol.rollout import BatchLedger, GroupOut, Groups, RequestLedger, SampleOut, Weights
from gleaner.actors.protocol.weights import Published
from gleaner.actors.rollout.journal.journaled_state import BatchWeights
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    Dispatched,
    FrameLogged,
    GroupsDropped,
    InstanceGone,
    InstanceJoined,
    Scored,
    TicketsRenewed,
    TicketsRevoked,
    VersionFailed,
    VersionPublished,
)
from gleaner.actors.training.draw_snapshots import ProblemsDrawn
from gleaner.actors.training.job_journal import JobSnapshot, StepFinished
from gleaner.chaos.invariants.catalogue import CHECKS, Jury, explanation, jury_of
from gleaner.chaos.invariants.check import Found
from gleaner.chaos.invariants.facts import (
    Committed,
    DeclaredDead,
    Fact,
    Failed,
    FrameDelivered,
    FramesAcknowledged,
    LateWait,
    Measured,
    MessagePassed,
    ProcessFrozen,
    RecordWritten,
    RunEnd,
    ServedImage,
)
from gleaner.chaos.invariants.failed_versions import GivenUpRightly
from gleaner.chaos.invariants.shadow import ShadowRequest
from gleaner.rlctl.audit.invariants import Evidence
from gleaner.supervisor import Address, Message
from gleaner.supervisor.names.registry import NameFenced
from gleaner.supervisor.system_messages import Found as Resolved

MANAGER = "rollout/manager"
ENGINE = "spot-1/engine"
R = "step-1/0/0"
SEED = 40
ROOT = b"r0"
ENDED = RunEnd(ended=True, virtual_s=50.0, deadline_s=900.0)


def response_of(seed: int, root: bytes, count: int) -> bytes:
    return array("I", [seed + len(root) - 2 + at for at in range(count)]).tobytes()


def made_by(request: ShadowRequest, root: bytes, count: int) -> bytes:
    return response_of(request.seed, root, count)


def commit(*messages: Message, stream: str = MANAGER, incarnation: int = 1) -> Committed:
    return Committed(1.0, "head", stream, incarnation, messages)


def frame(
    seq: int, tokens: Sequence[int], *, ticket: int = 1, incarnation: int = 5, last: bool = False
) -> FrameLogged:
    """One row a token; with `last` the request ends."""
    flags = [0] * len(tokens)
    if last:
        flags[-1] = 2
    return FrameLogged(
        instance=ENGINE,
        incarnation=incarnation,
        seq=seq,
        tickets=array("I", [ticket] * len(tokens)).tobytes(),
        tokens=array("I", tokens).tobytes(),
        logprobs=array("f", [-1.0] * len(tokens)).tobytes(),
        flags=bytes(flags),
    )


def opened(version: int = 0, root: bytes = ROOT) -> list[Message]:
    prompt = Prompt(split="train", index=0, tokens=(1,), seeds=(SEED,))
    return [
        BatchSubmitted(batch="step-1", version=version, prompts=(prompt,), max_new_tokens=8),
        BatchWeights(batch="step-1", weights=Weights(version=version, root=root, sources=("a",))),
        InstanceJoined(instance=ENGINE, incarnation=5),
        dispatched(1),
    ]


def dispatched(ticket: int, *, incarnation: int = 5, version: int = 0) -> Dispatched:
    return Dispatched(
        instance=ENGINE, incarnation=incarnation, version=version, tickets=(ticket,), requests=(R,)
    )


def sent(prefix: bytes, ticket: int = 1) -> MessagePassed:
    work = Work(ticket=ticket, prompt=b"", prefix=prefix, seed=SEED, max_new_tokens=8, temperature=1.0)
    return MessagePassed(
        1.0, "head/rollout", "out", "ask", MANAGER, ENGINE, Dispatch(epoch="1.1", version=0, work=[work])
    )


def handed_out(tokens: bytes, score: float = 1.0) -> MessagePassed:
    sample = SampleOut(request=R, tokens=tokens, logprobs=tokens, score=score, spans=())
    groups = Groups(groups=[GroupOut(group=0, prompt=b"", samples=(sample,))], remaining=0, remote_serving=1)
    return MessagePassed(2.0, "head/rollout", "out", "reply", MANAGER, "training/trainer", groups)


def trained(
    step: int = 1, *, root: bytes = b"r1", count: int = 3, batches: Iterable[Sequence[int]] = ((0,),)
) -> StepTrained:
    whole = response_of(SEED, ROOT, 3)
    sample = TrainedSample(request=f"step-{step}/0/0", count=count, crc=zlib.crc32(whole[: 4 * count]))
    return StepTrained(step=step, samples=(sample,), root=root, micro_batches=tuple(map(tuple, batches)))


def ledger(*, score: float = 1.0, crc: int | None = None) -> BatchLedger:
    whole = response_of(SEED, ROOT, 3)
    row = RequestLedger(
        request=R, count=3, crc=zlib.crc32(whole) if crc is None else crc, spans=(), score=score, status="ok"
    )
    return BatchLedger(batch="step-1", version=0, requests=(row,))


def job_snapshot(*recorded: tuple[int, int]) -> JobSnapshot:
    draws = ProblemsDrawn(cursor=0, waiting=(), batches={}, settled=())
    return JobSnapshot(recorded=recorded, evals=(), boot=1, draws=draws)


def whole_story() -> list[Fact]:
    """A request that moves between two lives of an instance, is scored, trained and released."""
    whole = response_of(SEED, ROOT, 3)
    return [
        commit(*opened()),
        sent(b""),
        commit(frame(1, [SEED]), frame(2, [SEED + 1])),
        FramesAcknowledged(1.1, ENGINE, 5, 2),
        commit(InstanceGone(instance=ENGINE, incarnation=5, cause="killed")),
        commit(InstanceJoined(instance=ENGINE, incarnation=6), dispatched(1, incarnation=6)),
        sent(whole[:8]),
        commit(frame(1, [SEED + 2], incarnation=6, last=True), incarnation=2),
        commit(Scored(request=R, score=1.0), incarnation=2),
        handed_out(whole),
        commit(trained(), stream="training/state"),
        commit(StepFinished(step=1), stream="training/controller"),
        commit(ledger(), stream="rollout/manager/ledger"),
        commit(BatchReleased(batch="step-1"), incarnation=2),
        MessagePassed(3.0, "a/transfer", "in", "ask", "t", "t", Published(version=1, root=b"r1")),
        MessagePassed(
            3.0,
            "head/rollout",
            "in",
            "ask",
            ENGINE,
            MANAGER,
            Serving(instance=ENGINE, incarnation=6, version=1, root=b"r1"),
        ),
        ServedImage(3.0, "spot-1", 1, b"r1", b"same", b"same"),
        RecordWritten(2.5, "reserved-1", 1, 1),
        FrameDelivered(3.0, "tcp://a", (1, 2, 7), 1, 3, (1, 3)),  # the second one could not be read
        FrameDelivered(3.0, "tcp://a", (1, 2, 7), 3, 4, range(4, 7)),  # a part of it had arrived before
        FrameDelivered(3.0, "tcp://b", (1, 2, 8), 1, 1, range(1, 2)),
        Measured(3.0, "head/rollout", "mailbox of rollout/manager", 10, 1024),
    ]


def judged(facts: Iterable[Fact], staleness: int = 0) -> list[Found]:
    jury = jury_of(made_by, staleness)
    for fact in facts:
        jury.see(fact)
    return jury.found


def test_whole_story_breaks_no_invariant() -> None:
    assert judged(whole_story()) == []


def under_two_versions(*, borne: int = 1, bound: int = 1) -> list[Fact]:
    """A request of step 2 that starts under version 0 and ends under version 1.

    Its ledger gives version `borne` for the end.
    """
    prompt = Prompt(split="train", index=0, tokens=(1,), seeds=(SEED,))
    batch = BatchSubmitted(
        batch="step-2", version=1, prompts=(prompt,), max_new_tokens=8, min_version=max(0, 1 - bound)
    )
    request, tokens = "step-2/0/0", array("I", [SEED, SEED + 4]).tobytes()  # response_of the two roots

    def dispatch(ticket: int, version: int) -> Dispatched:
        return Dispatched(
            instance=ENGINE, incarnation=5, version=version, tickets=(ticket,), requests=(request,)
        )

    def span(attempt: int, version: int, start: int) -> Span:
        return Span(attempt=attempt, instance=ENGINE, incarnation=5, version=version, start=start, count=1)

    row = RequestLedger(
        request=request, count=2, crc=zlib.crc32(tokens), spans=(span(1, 0, 0), span(2, borne, 1)),
        score=1.0, status="ok",
    )  # fmt: skip
    sample = TrainedSample(request=request, count=2, crc=zlib.crc32(tokens))
    return [
        commit(VersionPublished(version=0, root=ROOT, sources=("a",)), batch),
        commit(InstanceJoined(instance=ENGINE, incarnation=5), dispatch(1, 0)),
        commit(frame(1, [SEED])),
        commit(TicketsRevoked(instance=ENGINE, incarnation=5, tickets=(1,))),
        commit(VersionPublished(version=1, root=b"other", sources=("a",)), dispatch(2, 1)),
        commit(frame(2, [SEED + 4], ticket=2, last=True)),
        commit(Scored(request=request, score=1.0)),
        commit(trained(), StepTrained(step=2, samples=(sample,), root=b"r2"), stream="training/state"),
        commit(BatchLedger(batch="step-2", version=1, requests=(row,)), stream="rollout/manager/ledger"),
    ]


def stayed_under_two_versions(newer: int = 1) -> list[Fact]:
    """As `under_two_versions`, but the request stays with its instance, which loads version `newer`."""
    facts, renewed = (
        under_two_versions(),
        TicketsRenewed(instance=ENGINE, incarnation=5, version=newer, tickets=(1,)),
    )
    published = commit(VersionPublished(version=1, root=b"other", sources=("a",)), renewed)
    return [*facts[:3], published, commit(frame(2, [SEED + 4], last=True)), *facts[6:]]


def test_request_kept_over_weight_update_has_both_versions() -> None:
    assert judged(stayed_under_two_versions(), staleness=1) == []


def test_request_never_continues_under_unpublished_weights() -> None:
    received = judged(stayed_under_two_versions(newer=7), staleness=1)
    assert any("went on under version 7, which the trainer has not" in str(fault) for fault in received)


def test_tokens_within_staleness_bound_match_their_weights() -> None:
    assert judged(under_two_versions(), staleness=1) == []


EARLY = whole_story()[:5]
BROKEN: list[tuple[str, str, list[Fact]]] = [
    ("I1", "of another place or weights", [commit(*opened(root=b"another")), *whole_story()[1:10]]),
    (
        "I1",
        "of another place or weights",
        [
            commit(*opened()),
            commit(frame(1, [SEED, 9, SEED + 2], last=True)),
            commit(Scored(request=R, score=1.0)),
            handed_out(array("I", [SEED, 9, SEED + 2]).tobytes()),
        ],
    ),
    ("I1", "while spot-1/engine has it", [commit(*opened()), commit(dispatched(2))]),
    (
        "I1",
        "and is finished",
        [commit(*opened()), commit(frame(1, [SEED], last=True)), commit(dispatched(2))],
    ),
    ("I1", "before its end was journaled", [commit(*opened()), handed_out(b"")]),
    ("I1", "and they differ", [*whole_story()[:9], handed_out(response_of(SEED, ROOT, 2))]),
    (
        "I1",
        "was trained with 2 tokens",
        [*whole_story()[:9], commit(trained(count=2), stream="training/state")],
    ),
    (
        "I1",
        "was released with 3 tokens",
        [*whole_story()[:9], commit(ledger(crc=1), stream="rollout/manager/ledger")],
    ),
    ("I2", "the journal ends at 2", [*whole_story()[:3], FramesAcknowledged(1.1, ENGINE, 5, 3)]),
    ("I2", "the rest is generated again", [*whole_story()[:6], sent(response_of(SEED, ROOT, 1))]),
    ("I2", "other tokens than were collected", [*whole_story()[:6], sent(response_of(SEED + 1, ROOT, 2))]),
    ("I2", "journaled after frame 1", [commit(*opened()), commit(frame(1, [SEED]), frame(3, [SEED + 1]))]),
    (
        "I3",
        "rolled out under version 3",
        [commit(*opened(version=3)), commit(trained(), stream="training/state")],
    ),
    ("I3", "has tokens of version 0 from 0 on, allowed are 1 to 1", under_two_versions()),
    ("I3", "bears the versions [(0, 0)]", under_two_versions(borne=0)),
    (
        "I3",
        "under version 1, which the trainer has not",
        [
            *under_two_versions()[:4],
            commit(
                Dispatched(instance=ENGINE, incarnation=5, version=1, tickets=(2,), requests=("step-2/0/0",))
            ),
        ],
    ),
    ("I3", "was dispatched under 7", [commit(*opened()[:3]), commit(dispatched(1, version=7))]),
    ("I4", "after that incarnation was given up", [*EARLY, commit(frame(3, [SEED + 2]))]),
    (
        "I4",
        "given twice",
        [
            commit(*opened()),
            commit(TicketsRevoked(instance=ENGINE, incarnation=5, tickets=(1,))),
            commit(dispatched(1)),
        ],
    ),
    (
        "I4",
        "wrote to training/state on head after incarnation 2",
        [commit(stream="training/state", incarnation=2), commit(stream="training/state")],
    ),
    ("I5", "was trained after step 0", [commit(trained(2), stream="training/state")]),
    (
        "I5",
        "done again from other samples",
        [
            commit(trained(), stream="s"),
            commit(Rewound(step=0), stream="s"),
            commit(trained(count=2), stream="s"),
        ],
    ),
    (
        "I5",
        "gave other weights",
        [commit(trained(), trained(2), Rewound(step=1), trained(2, root=b"other"), stream="s")],
    ),
    (
        "I5",
        "a snapshot has steps ((1, 2),), the newest on record is 0",
        [commit(job_snapshot((1, 2)), stream="training/controller")],
    ),
    ("I5", "was recorded after step 0", [commit(StepFinished(step=2), stream="training/controller")]),
    (
        "I5",
        "never on record at its reserved host",
        [commit(StepFinished(step=1), stream="training/controller")],
    ),
    (
        "I5",
        "in other micro-batches",
        [
            commit(
                trained(batches=((0, 1), (2,))),
                Rewound(step=0),
                trained(batches=((0,), (1, 2))),
                stream="s",
            )
        ],
    ),
    ("I5", "the newest whole state on reserved-1 was of step 3", [RecordWritten(1.0, "reserved-1", 4, 3)]),
    (
        "I6",
        "never published",
        [
            MessagePassed(
                1.0,
                "p",
                "in",
                "ask",
                "x",
                "y",
                Serving(instance=ENGINE, incarnation=6, version=1, root=b"r9"),
            )
        ],
    ),
    ("I6", "published were", [ServedImage(3.0, "spot-1", 1, b"r1", b"damaged", b"whole")]),
    ("I6", "that was not published", [ServedImage(3.0, "spot-1", 1, b"r1", b"bytes", None)]),
    ("I7", "handed out with 0.5", [*whole_story()[:9], handed_out(response_of(SEED, ROOT, 3), score=0.5)]),
    ("I7", "before its verdict was journaled", [*whole_story()[:8], handed_out(response_of(SEED, ROOT, 3))]),
    (
        "I7",
        "released with 0.25",
        [*whole_story()[:9], commit(ledger(score=0.25), stream="rollout/manager/ledger")],
    ),
    ("I7", "was scored nan", [commit(Scored(request=R, score=float("nan")))]),
    ("I7", "was scored None", [commit(Scored(request=R, score=None))]),
    ("I7", "its verifier failed (lost)", [commit(Scored(request=R, score=0.0, status="lost"))]),
    (
        "I7",
        "was trained and is unscored",
        [
            *whole_story()[:8],
            commit(Scored(request=R, score=None, status="lost")),
            commit(trained(), stream="training/state"),
        ],
    ),
    ("I9", "the limit is 1024", [Measured(3.0, "head/rollout", "mailbox of x", 1025, 1024)]),
    (
        "no silent wait",
        "its deadline passed 3.00 s ago",
        [LateWait(9.0, "head/rollout", "x", "an answer", "y", 3.0)],
    ),
    (
        "once and in order",
        "message 2 of tcp://a was handed up again: all up to 3 had been",
        [
            FrameDelivered(1.0, "tcp://a", (1, 2, 7), 1, 3, range(1, 4)),
            FrameDelivered(1.1, "tcp://a", (1, 2, 7), 2, 3, range(2, 5)),
        ],
    ),
    (
        "once and in order",
        "those from 4 to 4 never were",
        [
            FrameDelivered(1.0, "tcp://a", (1, 2, 7), 1, 3, range(1, 4)),
            FrameDelivered(1.1, "tcp://a", (1, 2, 7), 5, 1, range(5, 6)),
        ],
    ),
    ("no stray failure", "KeyError", [Failed(9.0, "head/rollout", "KeyError: 5")]),
    ("hung process", "the limit is 15.0 s", [ProcessFrozen(9.0, "head/rollout", 15.1, 15.0)]),
    ("hung process", "another reason: SIGKILL", [ProcessFrozen(9.0, "head/rollout", 11.0, 15.0, "SIGKILL")]),
    ("invented death", "declared spot-1 killed", [DeclaredDead(9.0, "spot-1", 12.0, True)]),
]


@pytest.mark.parametrize(("check", "problem", "facts"), BROKEN, ids=[f"{it[0]} {it[1]}" for it in BROKEN])
def test_broken_promise_is_named_by_its_check(check: str, problem: str, facts: list[Fact]) -> None:
    found = judged(facts)
    assert [it.check for it in found if problem in it.text] == [check], found


def test_hung_process_may_end_by_name_or_otherwise() -> None:
    named = "SIGKILL (no heartbeat for 10.4 s)"
    assert judged([ProcessFrozen(9.0, "head/rollout", 14.9, 15.0)]) == []
    assert judged([ProcessFrozen(9.0, "head/rollout", 11.0, 15.0, named)]) == []
    assert judged([ProcessFrozen(9.0, "head/rollout", 2.0, 15.0, "SIGKILL", "the end of its parent")]) == []


def test_lost_host_may_be_declared_dead_after_a_pause() -> None:
    assert judged([DeclaredDead(9.0, "spot-1", 12.0, False)]) == []


def test_score_after_drop_of_its_group_is_ignored() -> None:
    story = whole_story()[:8]  # finished, not scored
    dropped = commit(GroupsDropped(batch="step-1", groups=(0,), why="surplus"), incarnation=2)
    late = commit(Scored(request=R, score=1.0), incarnation=2)
    released = commit(ledger(score=0.0), stream="rollout/manager/ledger")
    assert judged([*story, dropped, late, released]) == []
    assert [it.check for it in judged([*story, late, released])] == ["I7"]


def test_stalled_job_is_reported_with_its_oldest_waits() -> None:
    jury = jury_of(None)
    jury.see(commit(StepFinished(step=1), stream="training/controller"))
    late = RunEnd(
        ended=False,
        virtual_s=900.0,
        deadline_s=900.0,
        quiet_s=700.0,
        waits=("trainer waits for complete groups",),
    )
    found = jury.close(Evidence(steps=3, requests_per_step=1, complete=False, finished=[1]), late)
    stalled = next(it for it in found if it.check == "I8")
    assert "step 1 of 3" in stalled.text
    assert "trainer waits for complete groups" in stalled.text
    assert "700 s after the last fault" in stalled.text


def test_audit_findings_appear_under_their_own_names() -> None:
    jury = jury_of(None)
    evidence = Evidence(steps=2, requests_per_step=1, complete=True, finished=[1], fences={"a": [5, 4]})
    found = jury.close(evidence, ENDED)
    assert {it.check for it in found} == {"I4", "I5"}


def test_violations_of_a_broken_run_are_bounded() -> None:
    jury = jury_of(None)
    for number in range(500):
        jury.see(Failed(float(number), "p", f"problem {number}"))
    assert len(jury.found) == 50
    assert jury.found[0].at_s == 0.0


def test_every_check_documents_promise_and_failure() -> None:
    for check in CHECKS:
        assert check.name
        assert check.promise
        assert check.meaning.startswith("If this fails, ")
        assert explanation(check.name).startswith(f"{check.name}: {check.promise}. ")
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    jury: Jury = jury_of(None)
    assert jury.found == []


def test_name_belongs_to_new_incarnation_from_its_grant() -> None:
    def found(at_s: float, answer: Resolved) -> MessagePassed:
        return MessagePassed(at_s, "head/agent", "out", "reply", "registry", "$system", answer)

    def resolved(incarnation: int) -> Resolved:
        return Resolved(address=Address(name="a", endpoint="tcp://1", incarnation=incarnation))

    def fenced(at_s: float, incarnation: int) -> Committed:
        return Committed(at_s, "head", "registry", 1, (NameFenced(name="a", incarnation=incarnation),))

    before = [
        fenced(1.0, 4),
        found(1.1, resolved(4)),
        fenced(2.0, 5),
        found(2.01, resolved(4)),
    ]  # not granted yet
    assert judged(before) == []
    granted = [*before, found(2.02, resolved(5))]
    for late in ([*granted, found(2.03, resolved(4))], [*before, found(3.2, resolved(4))]):
        assert [(it.check, it.text) for it in judged(late)] == [
            ("I4", "a was found at incarnation 4, 5 holds it")
        ]


def test_version_given_up_too_early_is_reported() -> None:
    def received(message: NotLoaded | Serving) -> MessagePassed:
        return MessagePassed(1.0, "head/rollout", "in", "ask", message.instance, "rollout/manager", message)

    def loads(count: int) -> list[Fact]:
        one = NotLoaded(
            instance="s/engine", incarnation=1, kind="preemptible", version=2, root=b"r", why="no"
        )
        return [received(one)] * count

    given_up = Committed(2.0, "head", "rollout/manager", 1, [VersionFailed(version=2, root=b"r", why="no")])

    def found(*facts: Fact) -> list[str]:
        check = GivenUpRightly()
        return [text for fact in facts if check.wants(fact) for text in check.see(fact)]

    assert found(*loads(3), given_up) == []
    (early,) = found(*loads(2), given_up)
    assert early == "version 2 was given up after 2 failed loads of it, 3 are due"
    serves = received(Serving(instance="t/engine", incarnation=1, version=2, root=b"r"))
    assert found(*loads(3), serves, given_up) == ["version 2 was given up, and t/engine serves it"]
