"""I1, I2 and I3: requests and their tokens, from end to end.

Checked from the journal, the dispatches and the acknowledgements. Owns the comparison of messages and
training steps with the shadow of the token log, and of responses with the tokens that the modelled engine
must have generated.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator

from gleaner.actors.cluster.state_manager import Rewound
from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.protocol.instances import Dispatch, Work
from gleaner.actors.protocol.rollout import BatchLedger, GroupOut, Groups
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Committed, Fact, FramesAcknowledged, MessagePassed, RunEnd
from gleaner.chaos.invariants.problem_turns import ProblemTurns
from gleaner.chaos.invariants.shadow import Shadow, ShadowRequest
from gleaner.rlctl.audit.invariants import Evidence, audit, step_of

ResponseOf = Callable[[ShadowRequest, bytes, int], bytes | None]
"""The tokens (u32, raw) that a response must have, from its request, the root of the weights that it is made
with, and its length; None where those weights are not known."""


def still_open(evidence: Evidence, shadow: Shadow) -> Iterator[BatchLedger]:
    """The ledgers of batches with which the job ended: they were never released, so no commit contains
    them."""
    return (ledger for ledger in evidence.ledgers if ledger.batch in shadow.versions)


def audited(name: str, evidence: Evidence, ending: RunEnd) -> Iterator[str]:
    """Violations of one invariant from `rlctl audit`; none where a power loss took evidence with it."""
    return (
        iter(())
        if ending.lost_commits
        else (violation.text for violation in audit(evidence) if violation.invariant == name)
    )


class EachRequestOnce(Check):
    """I1."""

    fact_kinds, message_kinds = (Committed, MessagePassed), (Groups,)
    committed_kinds = (BatchLedger, StepTrained, Rewound)
    name = "I1"
    promise = "each request reaches the trainer exactly once, its tokens are its spans joined"
    meaning = (
        "If this fails, a sample was trained twice or never, or a response was spliced wrongly where it "
        "moved "
        "from one instance to another: the gradient is that of a text that no policy generated."
    )

    def __init__(self, shadow: Shadow, response_of: ResponseOf | None, problems: int | None = None) -> None:
        self._shadow = shadow
        self._response_of = response_of
        self._turns = ProblemTurns(problems)

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed):
            for message in fact.messages:
                if isinstance(message, BatchLedger):
                    yield from some(self._ledger(message))
                elif isinstance(message, StepTrained):
                    yield from some(self._trained(message))
                    yield from some(self._turns.trained(message.step, self._problems(message)))
                elif isinstance(message, Rewound):
                    self._turns.rewound(message.step)
        elif isinstance(fact, MessagePassed) and fact.direction == "out" and isinstance(fact.message, Groups):
            for group in fact.message.groups:
                yield from some(self._handed_out(group))

    def end(self, evidence: Evidence, ending: RunEnd) -> Iterable[str]:
        yield from audited(self.name, evidence, ending)
        for ledger in still_open(evidence, self._shadow):
            yield from some(self._ledger(ledger))

    def _ledger(self, ledger: BatchLedger) -> Iterator[str]:
        for request in ledger.requests:
            known = self._shadow.requests.get(request.request)
            if known is None:
                yield f"{ledger.batch} was released with {request.request}, which it never held"
            elif (known.crc, len(known.tokens)) != (request.crc, request.count):
                yield (
                    f"{request.request} was released with {request.count} tokens (crc {request.crc:08x}), "
                    f"journaled are {len(known.tokens)} (crc {known.crc:08x})"
                )
            elif (wrong := wrong_token(known, self._response_of)) is not None:
                yield f"{request.request} has at position {wrong} a token of another place or weights"

    def _trained(self, event: StepTrained) -> Iterator[str]:
        for sample in event.samples:
            known = self._shadow.requests.get(sample.request)
            if known is not None and (known.crc, len(known.tokens)) != (sample.crc, sample.count):
                yield (
                    f"step {event.step}: {sample.request} was trained with {sample.count} tokens "
                    f"(crc {sample.crc:08x}), journaled are {len(known.tokens)} (crc {known.crc:08x})"
                )

    def _problems(self, event: StepTrained) -> set[int]:
        known = (self._shadow.requests.get(sample.request) for sample in event.samples)
        return {one.problem for one in known if one is not None and one.problem is not None}

    def _handed_out(self, group: GroupOut) -> Iterator[str]:
        for sample in group.samples:
            known = self._shadow.requests.get(sample.request)
            if known is not None:
                self._shadow.handed_out.add(sample.request)
            if known is not None and known.dropped:
                yield f"{sample.request} was handed out, and its group was dropped"
            elif known is not None and not known.finished:
                yield f"{sample.request} was handed out before its end was journaled"
            elif known is not None and known.tokens.tobytes() != sample.tokens:
                yield (
                    f"{sample.request} was handed out with {len(sample.tokens) // 4} tokens, journaled are "
                    f"{len(known.tokens)}, and they differ"
                )
            elif known is not None and (wrong := wrong_token(known, self._response_of)) is not None:
                yield f"{sample.request} has at position {wrong} a token of another place or weights"


def wrong_token(known: ShadowRequest, response_of: ResponseOf | None) -> int | None:
    """The first position with a wrong token; None for none."""
    if response_of is None or not known.made:  # its time was up before its first token
        return None
    ends = [start for start, _, _ in known.made[1:]] + [len(known.tokens)]
    for (start, _, root), end in zip(known.made, ends, strict=True):
        raw = response_of(known, root, end) if root is not None else None
        if raw is None or raw[4 * start :] == known.tokens[start:end].tobytes():
            continue
        wanted = array("I", raw)
        return next(at for at in range(start, end) if known.tokens[at] != wanted[at])
    return None


class NothingLostOrTwice(Check):
    """I2."""

    fact_kinds, message_kinds = (FramesAcknowledged, MessagePassed), (Dispatch,)
    name = "I2"
    promise = "a collected token is never lost and never generated again"
    meaning = (
        "If this fails, paid work was thrown away: an instance received an acknowledgement of what no "
        "journal "
        "held, or a request went on from another place than where it was."
    )

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, FramesAcknowledged):
            have = self._shadow.journaled(fact.stream, fact.incarnation)
            if have is not None and fact.seq > have:
                yield (
                    f"{fact.stream}#{fact.incarnation} received an acknowledgement of frame {fact.seq}; the "
                    f"journal ends at {have}"
                )
        elif (
            isinstance(fact, MessagePassed) and fact.direction == "out" and isinstance(fact.message, Dispatch)
        ):
            yield from some(text for work in fact.message.work for text in self._goes_on(fact, work))

    def end(self, evidence: Evidence, ending: RunEnd) -> Iterable[str]:
        return audited(self.name, evidence, ending)

    def _goes_on(self, fact: MessagePassed, work: Work) -> Iterator[str]:
        stream = self._shadow.streams.get(fact.to)
        name = stream.tickets.get(work.ticket) if stream is not None else None
        if name is None:
            return  # taken back meanwhile: its rows will be dropped
        known = self._shadow.requests[name]
        length = len(work.prefix) // 4
        if not known.tokens.tobytes().startswith(work.prefix):
            yield f"{name} went to {fact.to} with other tokens than were collected"
        elif length < len(known.tokens):
            yield (
                f"{name} went to {fact.to} with {length} of {len(known.tokens)} collected tokens: the "
                f"rest is "
                "generated again"
            )


class OnPolicy(Check):
    """I3."""

    fact_kinds = (Committed,)
    committed_kinds = (StepTrained, BatchLedger)
    name = "I3"
    promise = "every token of a trained sample was made under the step's version, or within the bound"
    meaning = (
        "If this fails, the trainer believes that the policy generated what an older or newer one did, "
        "and the "
        "gradient is biased without a word."
    )

    def __init__(self, shadow: Shadow, staleness: int = 0) -> None:
        self._shadow, self._staleness = shadow, staleness

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed):
            for message in fact.messages:
                if isinstance(message, StepTrained):
                    yield from some(self._trained(message))
                elif isinstance(message, BatchLedger):
                    yield from some(self._ledger(message))

    def end(self, evidence: Evidence, ending: RunEnd) -> Iterable[str]:
        yield from audited(self.name, evidence, ending)
        for ledger in still_open(evidence, self._shadow):
            yield from some(self._ledger(ledger))

    def _trained(self, event: StepTrained) -> Iterator[str]:
        for sample in event.samples:
            known = self._shadow.requests.get(sample.request)
            if known is not None and known.version != event.step - 1:
                yield (
                    f"step {event.step}: {sample.request} was rolled out under version {known.version}, "
                    f"expected {event.step - 1}"
                )
            least = max(0, event.step - 1 - self._staleness)
            for start, version, _ in known.made if known is not None else ():
                if not least <= version < event.step:
                    yield (
                        f"step {event.step}: {sample.request} has tokens of version {version} from {start} "
                        f"on, allowed are {least} to {event.step - 1}"
                    )
            batch = sample.request.partition("/")[0]
            if step_of(batch) != event.step:
                yield f"step {event.step}: {sample.request} belongs to {batch}"

    def _ledger(self, ledger: BatchLedger) -> Iterator[str]:
        """The versions in the spans are those that made their tokens."""
        for request in ledger.requests:
            known = self._shadow.requests.get(request.request)
            borne: list[tuple[int, int]] = []
            for span in request.spans:
                if not borne or borne[-1][1] != span.version:
                    borne.append((span.start, span.version))
            made: list[tuple[int, int]] = []
            for start, version, _ in known.made if known is not None else ():
                if not made or made[-1][1] != version:
                    made.append((start, version))
            if known is not None and request.spans and borne != made:
                yield f"{request.request} bears the versions {borne} (from, version), made it have {made}"
