"""RolloutState: the effects of single events."""

import math
from array import array

import msgspec
import pytest
from rollout_world import MAX_NEW, frame, logprobs_of, submission, tokens_of

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.requests import Generate, Generated
from gleaner.actors.rollout.requests.answers import answer_to
from gleaner.actors.rollout.state import tickets as ticket_table
from gleaner.actors.rollout.state.admission import MAX_OPEN_BATCHES
from gleaner.actors.rollout.state.events import (
    BatchReleased,
    Dispatched,
    FrameLogged,
    GroupsTaken,
    InstanceGone,
    InstanceJoined,
    Scored,
    TicketsRenewed,
    TicketsRevoked,
    VersionPublished,
)
from gleaner.actors.rollout.state.request_log import RequestState
from gleaner.actors.rollout.state.state import RolloutState
from gleaner.actors.rollout.state.tickets import ABORTED, CUT, FINISHED, FIRST, NO_TOKEN
from gleaner.supervisor import Done

ONE = "step-1/0/0"


@pytest.fixture
def state() -> RolloutState:
    """A batch of two groups of two, and one instance `spot` with the first request under ticket 1."""
    state = RolloutState()
    state.apply(submission())
    state.apply(InstanceJoined(instance="spot", incarnation=4))
    dispatch(state, "spot", 4, 1, ONE)
    return state


def dispatch(state: RolloutState, instance: str, incarnation: int, ticket: int, request: str) -> list[str]:
    event = Dispatched(
        instance=instance, incarnation=incarnation, version=1, tickets=(ticket,), requests=(request,)
    )
    return state.apply(event).refused


def test_submitted_batch_queues_its_requests_in_order() -> None:
    state = RolloutState()
    changes = state.apply(submission(groups=2, samples=2))
    assert changes.queued == ["step-1/0/0", "step-1/0/1", "step-1/1/0", "step-1/1/1"]
    assert [log.id for log in state.log.queued()] == changes.queued
    assert state.log.requests["step-1/1/0"].prompt == array("I", [1, 2, 1])
    assert state.log.requests["step-1/1/1"].seed == 1


def test_rows_extend_the_log_of_their_ticket(state: RolloutState) -> None:
    changes = state.apply(frame("spot", 4, 1, [(1, 70, -0.25, FIRST)]))
    assert changes.started == [("spot", 4)]
    changes = state.apply(frame("spot", 4, 2, [(1, 71, -0.5, FINISHED)]))
    log = state.log.requests[ONE]
    assert (tokens_of(log), logprobs_of(log)) == ([70, 71], [-0.25, -0.5])
    assert log.state is RequestState.FINISHED
    assert changes.finished == [ONE]
    assert [(ended.ticket, ended.was_executing) for ended in changes.ended] == [(1, True)]


@pytest.mark.parametrize(("flags", "status"), [(0, "stop"), (CUT, "length")])
def test_early_end_has_the_status_of_the_engine(flags: int, status: str) -> None:
    state = RolloutState()
    state.apply(submission())
    state.apply(InstanceJoined(instance="spot", incarnation=4))
    dispatch(state, "spot", 4, 1, ONE)
    state.apply(frame("spot", 4, 1, [(1, 70, -0.25, FIRST), (1, 71, -0.5, FINISHED | flags)]))
    again = RolloutState()
    again.apply(state.snapshot())
    for known in (state, again):
        log = known.log.requests[ONE]
        assert not log.full
        answer = answer_to(Generate(id="r", prompt=b"", max_new_tokens=MAX_NEW), log)
        assert isinstance(answer, Generated)
        assert answer.status == status


def test_request_of_a_dead_instance_continues(state: RolloutState) -> None:
    state.apply(frame("spot", 4, 1, [(1, 70, 0.0, FIRST)]))
    changes = state.apply(InstanceGone(instance="spot", incarnation=4, cause="SIGKILL"))
    assert changes.queued == [ONE]
    assert state.log.queued()[0].id == ONE, "it precedes the requests that never ran"
    state.apply(InstanceJoined(instance="other", incarnation=9))
    dispatch(state, "other", 9, 1, ONE)
    state.apply(frame("other", 9, 1, [(1, 71, 0.0, FIRST | FINISHED)]))
    log = state.log.requests[ONE]
    assert tokens_of(log) == [70, 71]
    assert [(span.attempt, span.instance, span.start, span.count) for span in log.spans] == [
        (1, "spot", 0, 1),
        (2, "other", 1, 1),
    ]
    assert state.counters.requests_migrated == 1
    assert state.check() == []


def test_rows_of_revoked_tickets_are_dropped_and_counted(state: RolloutState) -> None:
    state.apply(frame("spot", 4, 1, [(1, 70, 0.0, FIRST)]))
    state.apply(TicketsRevoked(instance="spot", incarnation=4, tickets=(1,)))
    dispatch(state, "spot", 4, 2, ONE)
    state.apply(frame("spot", 4, 2, [(1, 71, 0.0, 0), (2, 71, 0.0, FIRST)]))
    assert tokens_of(state.log.requests[ONE]) == [70, 71]
    assert state.counters.tokens_generated_twice == 1
    state.apply(frame("spot", 4, 3, [(1, 0, 0.0, ABORTED | NO_TOKEN)]))
    assert list(state.streams["spot"].tickets) == [2]


def test_aborted_ticket_requeues_its_request_with_tokens(state: RolloutState) -> None:
    state.apply(frame("spot", 4, 1, [(1, 70, 0.0, FIRST)]))
    changes = state.apply(frame("spot", 4, 2, [(1, 0, 0.0, ABORTED | NO_TOKEN)]))
    assert changes.queued == [ONE]
    assert [ended.was_executing for ended in changes.ended] == [True]
    assert tokens_of(state.log.requests[ONE]) == [70]


def test_abort_before_decoding_was_never_executing(state: RolloutState) -> None:
    changes = state.apply(frame("spot", 4, 1, [(1, 0, 0.0, ABORTED | NO_TOKEN)]))
    assert changes.started == []
    assert [ended.was_executing for ended in changes.ended] == [False]


def test_row_of_another_version_requeues_its_request(state: RolloutState) -> None:
    changes = state.apply(frame("spot", 4, 1, [(1, 70, 0.0, FIRST)], version=2))
    assert changes.refused == ["wrong_version"]
    assert changes.queued == [ONE]
    assert not len(state.log.requests[ONE])
    assert state.refused["wrong_version"] == 1
    assert state.check() == []


def test_dispatch_of_another_version_changes_nothing(state: RolloutState) -> None:
    wrong = Dispatched(instance="spot", incarnation=4, version=2, tickets=(2,), requests=("step-1/0/1",))
    assert state.apply(wrong).refused == ["wrong_version"]
    assert state.log.requests["step-1/0/1"].state is RequestState.QUEUED
    assert state.log.requests["step-1/0/1"].attempts == 0


def test_request_is_never_on_two_instances(state: RolloutState) -> None:
    state.apply(InstanceJoined(instance="other", incarnation=9))
    assert dispatch(state, "other", 9, 1, ONE) == ["dispatched_twice"]


def test_used_ticket_is_not_used_again(state: RolloutState) -> None:
    assert dispatch(state, "spot", 4, 1, "step-1/0/1") == ["ticket_used"]
    assert state.streams.next_ticket("spot", 4) == 2


def test_duplicate_and_early_frames_are_dropped(state: RolloutState) -> None:
    first = frame("spot", 4, 1, [(1, 70, 0.0, FIRST)])
    assert state.apply(frame("spot", 4, 2, [(1, 71, 0.0, 0)])).refused == ["gap"]
    assert state.apply(first).refused == []
    assert state.apply(first).refused == ["duplicate"]
    assert tokens_of(state.log.requests[ONE]) == [70]
    assert state.streams.have("spot", 4) == 1


def test_older_incarnation_changes_nothing(state: RolloutState) -> None:
    state.apply(InstanceJoined(instance="spot", incarnation=5))
    assert state.log.requests[ONE].state is RequestState.QUEUED
    changes = state.apply(frame("spot", 4, 1, [(1, 70, 0.0, FIRST)]))
    assert changes.refused == ["fenced"]
    assert not len(state.log.requests[ONE])
    assert state.counters.tokens_generated_twice == 1
    assert state.apply(InstanceJoined(instance="spot", incarnation=4)).refused == ["fenced"]
    assert state.apply(InstanceGone(instance="spot", incarnation=4, cause="late")).refused == ["fenced"]
    assert state.streams.have("spot", 4) is None
    assert state.streams.have("spot", 5) == 0
    with pytest.raises(KeyError, match="spot incarnation 4"):
        state.streams.next_ticket("spot", 4)


def test_given_up_incarnation_cannot_join_again(state: RolloutState) -> None:
    state.apply(InstanceGone(instance="spot", incarnation=4, cause="silence"))
    assert state.apply(InstanceJoined(instance="spot", incarnation=4)).refused == ["fenced"]
    assert state.streams.have("spot", 4) is None


def test_rows_without_a_ticket_are_counted_by_reason(state: RolloutState) -> None:
    state.apply(frame("spot", 4, 1, [(1, 70, 0.0, FINISHED)]))
    never = state.streams.next_ticket("spot", 4)
    rows = [(1, 71, 0.0, 0), (never, 1, 0.0, 0), (77, 1, 0.0, 0)]
    changes = state.apply(frame("spot", 4, 2, rows))
    assert changes.refused == ["late_row", "unknown_ticket", "unknown_ticket"]


def test_request_at_its_limit_is_finished(state: RolloutState) -> None:
    for seq in range(1, MAX_NEW + 1):
        changes = state.apply(frame("spot", 4, seq, [(1, seq, 0.0, 0)]))
    assert changes.finished == [ONE]
    assert len(state.log.requests[ONE]) == MAX_NEW


def test_malformed_frame_costs_the_incarnation_but_no_token(state: RolloutState) -> None:
    state.apply(frame("spot", 4, 1, [(1, 70, 0.0, FIRST)]))
    broken = FrameLogged(
        instance="spot", incarnation=4, seq=2, tickets=b"\1\0\0\0", tokens=b"", logprobs=b"", flags=b"\0"
    )
    changes = state.apply(broken)
    assert changes.refused == ["malformed"]
    assert changes.queued == [ONE]
    assert state.streams.have("spot", 4) is None
    assert tokens_of(state.log.requests[ONE]) == [70]


def test_group_is_complete_when_all_samples_are_scored(state: RolloutState) -> None:
    dispatch(state, "spot", 4, 2, "step-1/0/1")
    state.apply(frame("spot", 4, 1, [(1, 7, 0.0, FINISHED), (2, 8, 0.0, FINISHED)]))
    assert [log.id for log in state.log.unscored()] == [ONE, "step-1/0/1"]
    assert state.apply(Scored(request=ONE, score=1.0)).completed == []
    assert state.log.batches["step-1"].ready(taker=1) == []
    changes = state.apply(Scored(request="step-1/0/1", score=0.0, status="timeout"))
    assert changes.completed == [("step-1", 0)]
    assert state.log.batches["step-1"].ready(taker=1) == [0]
    assert state.log.unscored() == []


def test_reward_counts_once(state: RolloutState) -> None:
    assert state.apply(Scored(request=ONE, score=1.0)).refused == ["scored_unfinished"]
    state.apply(frame("spot", 4, 1, [(1, 7, 0.0, FINISHED)]))
    state.apply(Scored(request=ONE, score=0.25))
    assert state.apply(Scored(request=ONE, score=1.0)).refused == ["scored_twice"]
    assert state.log.requests[ONE].score == 0.25
    assert state.apply(Scored(request="nobody", score=1.0)).refused == ["unknown_request"]


def test_new_trainer_gets_every_group_again(state: RolloutState) -> None:
    dispatch(state, "spot", 4, 2, "step-1/0/1")
    state.apply(frame("spot", 4, 1, [(1, 7, 0.0, FINISHED), (2, 8, 0.0, FINISHED)]))
    for request in (ONE, "step-1/0/1"):
        state.apply(Scored(request=request, score=1.0))
    batch = state.log.batches["step-1"]
    assert state.apply(GroupsTaken(batch="step-1", taker=1, groups=(0,))).refused == []
    assert batch.ready(taker=1) == []
    assert state.apply(GroupsTaken(batch="step-1", taker=1, groups=(0, 1))).refused == ["not_ready"] * 2
    assert batch.ready(taker=2) == [0]
    state.apply(GroupsTaken(batch="step-1", taker=2, groups=(0,)))
    assert batch.ready(taker=2) == []
    assert batch.ready(taker=1) == []
    assert state.apply(GroupsTaken(batch="step-1", taker=1, groups=(0,))).refused == ["fenced"]


def test_released_batch_leaves_only_its_sums(state: RolloutState) -> None:
    state.apply(frame("spot", 4, 1, [(1, 70, 0.0, FIRST)]))
    changes = state.apply(BatchReleased(batch="step-1"))
    assert [ended.ticket for ended in changes.ended] == [1]
    assert not state.log.requests
    assert not state.log.queued()
    assert not state.streams["spot"].tickets
    assert (state.counters.tokens_collected, state.tokens_lost) == (1, 0)
    assert state.apply(frame("spot", 4, 2, [(1, 71, 0.0, 0)])).refused == ["late_row"]
    assert state.apply(BatchReleased(batch="step-1")).refused == ["unknown_batch"]


def test_repeated_batch_is_accepted_unless_its_contents_differ(state: RolloutState) -> None:
    assert state.refusal(submission()) is None
    assert state.apply(submission()).queued == []
    other = submission(groups=3)
    assert "other contents" in str(state.refusal(other))
    assert state.apply(other).refused == ["batch"]
    assert len(state.log.requests) == 4


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (BatchSubmitted(batch="b", version=1, prompts=(), max_new_tokens=5), "there must be a prompt"),
        (
            BatchSubmitted(
                batch="b",
                version=1,
                prompts=(Prompt(split="train", index=0, tokens=(), seeds=(1,)),),
                max_new_tokens=5,
            ),
            "needs tokens",
        ),
        (
            BatchSubmitted(
                batch="b",
                version=1,
                prompts=(Prompt(split="train", index=0, tokens=(1,), seeds=(1,)),),
                max_new_tokens=0,
            ),
            "max_new_tokens is 0",
        ),
        (
            BatchSubmitted(
                batch="b",
                version=1,
                prompts=(Prompt(split="train", index=0, tokens=(1,), seeds=(1,) * 140_000),),
                max_new_tokens=5,
            ),
            "may be open",
        ),
    ],
)
def test_impossible_batch_is_refused_with_a_reason(event: BatchSubmitted, words: str) -> None:
    assert words in str(RolloutState().refusal(event))


def test_open_batches_are_bounded() -> None:
    state = RolloutState()
    for number in range(MAX_OPEN_BATCHES):
        state.apply(submission(f"step-{number}"))
    assert "release one first" in str(state.refusal(submission("one-more")))


def test_fences_and_superseded_tickets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticket_table, "MAX_GONE", 3)
    monkeypatch.setattr(ticket_table, "MAX_TICKETS", 2)
    state = RolloutState()
    state.apply(submission())
    for number in range(1, 9):
        state.apply(InstanceJoined(instance=f"spot-{number}", incarnation=number))
        state.apply(InstanceGone(instance=f"spot-{number}", incarnation=number, cause="test"))
    assert list(state.streams) == ["spot-6", "spot-7", "spot-8"]
    state.apply(InstanceJoined(instance="spot", incarnation=20))
    for ticket in range(1, 6):
        dispatch(state, "spot", 20, ticket, ONE)
        state.apply(TicketsRevoked(instance="spot", incarnation=20, tickets=(ticket,)))
    assert list(state.streams["spot"].tickets) == [4, 5]


def test_event_of_another_kind_is_refused() -> None:
    assert RolloutState().apply(Done()).refused == ["not_an_event"]


def test_log_probs_keep_their_bits(state: RolloutState) -> None:
    state.apply(frame("spot", 4, 1, [(1, 2**32 - 1, -math.pi, FIRST)]))
    log = state.log.requests[ONE]
    assert log.logprobs_bytes() == array("f", [-math.pi]).tobytes()
    assert tokens_of(log) == [2**32 - 1]


def test_check_names_what_is_broken(state: RolloutState) -> None:
    state.apply(frame("spot", 4, 1, [(1, 70, 0.0, FIRST)]))
    log = state.log.requests[ONE]
    assert state.check() == []
    log.columns.append(log.slot, 71, 0.0)
    assert any("in no request" in fault for fault in state.check())
    state.counters.tokens_collected += 1
    assert state.check() == []
    other = state.log.requests["step-1/0/1"]
    other.restore(array("I", [70, 71]).tobytes(), bytes(8), [msgspec.structs.replace(log.spans[0], start=1)])
    assert any("starts at 1, not at 0" in fault for fault in state.check())
    log.state = RequestState.FINISHED
    assert any("is elsewhere" in fault for fault in state.check())
    log.state = RequestState.QUEUED
    assert any("queue differs" in fault for fault in state.check())
    state.log.batches["step-1"].taken.add(1)
    assert any("group 1 was handed out incomplete" in fault for fault in state.check())


def test_restarted_requests_of_a_lost_instance_waste_tokens(state: RolloutState) -> None:
    state.apply(frame("spot", 4, 1, [(1, 70, -0.25, FIRST)]))
    state.apply(frame("spot", 4, 2, [(1, 71, -0.5, 0)]))
    changes = state.apply(InstanceGone(instance="spot", incarnation=4, cause="SIGKILL", anew=True))
    log = state.log.requests[ONE]
    assert changes.queued == [ONE]
    assert (len(log), log.spans, tokens_of(log)) == (0, [], [])
    assert state.counters.tokens_wasted == {"lost": 2}
    assert (state.tokens_lost, state.check()) == (0, [])
    state.apply(InstanceJoined(instance="other", incarnation=5))
    assert dispatch(state, "other", 5, 1, ONE) == []
    state.apply(frame("other", 5, 1, [(1, 90, -1.0, FIRST), (1, 91, -1.0, 0)]))
    assert tokens_of(log) == [90, 91]
    assert state.check() == []


def between_versions() -> RolloutState:
    """`ONE` admits versions from 1 on, has a token of version 1, and is on `spot` under ticket 1.

    Version 2 is known, 3 is not."""
    state = RolloutState()
    for version in (1, 2):
        state.apply(VersionPublished(version=version, root=b"r%d" % version, sources=("r",)))
    state.apply(msgspec.structs.replace(submission(), min_version=1))
    state.apply(InstanceJoined(instance="spot", incarnation=4))
    dispatch(state, "spot", 4, 1, ONE)
    state.apply(frame("spot", 4, 1, [(1, 70, 0.0, FIRST)]))
    state.apply(frame("spot", 4, 2, [(1, 71, 0.0, 0)]))
    return state


def renewed(version: int = 2, ticket: int = 1, incarnation: int = 4) -> TicketsRenewed:
    return TicketsRenewed(instance="spot", incarnation=incarnation, version=version, tickets=(ticket,))


def test_renewed_ticket_has_a_span_of_newer_weights() -> None:
    state = between_versions()
    assert state.apply(renewed()).refused == []
    state.apply(frame("spot", 4, 3, [(1, 72, 0.0, 0), (1, 73, 0.0, 0)]))
    state.apply(frame("spot", 4, 4, [(1, 74, 0.0, FINISHED)]))
    log = state.log.requests[ONE]
    assert tokens_of(log) == [70, 71, 72, 73, 74]
    spans = [(span.attempt, span.instance, span.version, span.start, span.count) for span in log.spans]
    assert spans == [(1, "spot", 1, 0, 2), (2, "spot", 2, 2, 3)]
    assert state.counters.requests_migrated == 0
    assert log.state is RequestState.FINISHED
    assert state.check() == []


def test_renewed_and_lost_ticket_has_no_empty_span() -> None:
    state = between_versions()
    state.apply(renewed())
    assert state.apply(InstanceGone(instance="spot", incarnation=4, cause="SIGKILL")).queued == [ONE]
    assert [(span.version, span.count) for span in state.log.requests[ONE].spans] == [(1, 2)]
    assert state.check() == []


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (renewed(version=3), "wrong_version"),  # it was never published
        (renewed(version=0), "wrong_version"),  # below the gate
        (renewed(ticket=7), "wrong_version"),
        (renewed(incarnation=3), "fenced"),
    ],
)
def test_renewal_that_no_gate_admits_is_refused(event: TicketsRenewed, why: str) -> None:
    state = between_versions()
    assert state.apply(event).refused == [why]
    state.apply(frame("spot", 4, 3, [(1, 72, 0.0, 0)]))
    assert [(span.version, span.count) for span in state.log.requests[ONE].spans] == [(1, 3)]


def test_request_of_exactly_one_version_is_never_renewed(state: RolloutState) -> None:
    state.apply(VersionPublished(version=2, root=b"r2", sources=("r",)))
    assert state.apply(renewed()).refused == ["wrong_version"]
    assert state.streams["spot"].tickets[1].attempt == 1
