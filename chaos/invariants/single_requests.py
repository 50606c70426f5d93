"""Single requests: answers to callers, by the terms of docs/versions.md.

The id identifies the request. Owns the comparison of every answer and refusal with the request, with earlier
answers, and with the token log in the journal. Single requests are batches of one: I1 to I4 hold for them as
for others.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from gleaner.actors.protocol.batches import BatchSubmitted
from gleaner.actors.protocol.requests import Generate, Generated, VersionNotReady
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Committed, Fact, RequestAnswered, RequestAsked, RunEnd
from gleaner.chaos.invariants.samples import ResponseOf, wrong_token
from gleaner.chaos.invariants.shadow import Shadow, ShadowRequest
from gleaner.rlctl.audit.invariants import Evidence

BATCH = "generate-"
"""Prefix of the batch of a single request (docs/protocol.md); written again here on purpose."""
ASKED_AGAIN = "was asked again"
LATE_S = 20.0
"""After its own deadline and the last fault, a request that a caller still asks for has an answer."""


@dataclass(slots=True)
class _Call:
    """first: the first ask. begun_s: time of its commit in the journal; answered: its caller's answer."""

    first: Generate
    asked_s: float
    begun_s: float | None = None
    answered: Generated | None = None
    over: bool = False


class SingleRequests(Check):
    """See the module."""

    fact_kinds = (RequestAsked, RequestAnswered, Committed)
    committed_kinds = (BatchSubmitted,)
    name = "single requests"
    promise = "an id is one request, with one answer within its gate, however often it is asked for"
    meaning = (
        "If this fails, a caller that lost an answer and asked again was given another one, paid for it "
        "twice, or "
        "got tokens of weights that it had excluded."
    )

    def __init__(self, shadow: Shadow, response_of: ResponseOf | None) -> None:
        self._shadow = shadow
        self._response_of = response_of
        self._calls: dict[str, _Call] = {}

    def see(self, fact: Fact) -> Iterable[str]:
        match fact:
            case RequestAsked():
                self._calls.setdefault(fact.request.id, _Call(fact.request, fact.at_s))
            case RequestAnswered():
                yield from some(self._answered(fact))
            case Committed(stream="rollout/manager", snapshot=False):
                for message in fact.messages:
                    if isinstance(message, BatchSubmitted) and not message.scored:
                        yield from some(self._begun(message, fact.at_s))

    def end(self, evidence: Evidence, ending: RunEnd) -> Iterable[str]:
        return some(self._never_answered(ending))

    def _never_answered(self, ending: RunEnd) -> Iterator[str]:
        calm_s = ending.virtual_s - ending.quiet_s
        for name, call in self._calls.items():
            if call.over or call.begun_s is None:
                continue
            open_s = ending.virtual_s - max(call.begun_s, calm_s)
            if open_s > call.first.deadline_s + LATE_S:
                yield (
                    f"{name} was begun at {call.begun_s:.1f} s, had {call.first.deadline_s:g} s and no "
                    f"answer in {open_s:.1f} s in which nothing was broken"
                )

    def _begun(self, event: BatchSubmitted, at_s: float) -> Iterator[str]:
        name = event.batch.removeprefix(BATCH)
        call = self._calls.get(name)
        if call is None:
            yield f"{event.batch} was begun, and no caller requested {name}"
            return
        if call.begun_s is not None:
            yield f"{event.batch} was begun at {call.begun_s:.1f} s, and again"
        call.begun_s = at_s
        first = call.first
        gate = None if first.exact_version is not None else first.min_version or 0
        wanted = tuple(array("I", first.prompt)), (first.seed,), first.max_new_tokens, gate
        (prompt,) = event.prompts
        if (
            (prompt.tokens, prompt.seeds, event.max_new_tokens, event.min_version) != wanted
            or (event.temperature, event.sampling) != (first.temperature, first.sampling)
            or (gate is None and event.version != first.exact_version)
        ):
            yield f"{event.batch} was begun with other contents than it was asked for"

    def _answered(self, fact: RequestAnswered) -> Iterator[str]:
        request, call = fact.request, self._calls[fact.request.id]
        known = self._shadow.requests.get(f"{BATCH}{request.id}/0/0")
        false = self._false(call, request, known)
        match fact.answer:
            case Generated():
                if false:
                    yield f"{request.id} was answered, and {false}"
                elif known is None:
                    yield f"{request.id} was answered, and the journal does not have it"
                else:
                    yield from self._generated(call, request, fact.answer, known)
                call.over = True
            case VersionNotReady():
                yield from self._not_ready(call, fact, fact.answer)
            case None:
                call.over = call.over or bool(fact.refusal)
                if fact.refusal and not false and ASKED_AGAIN not in fact.refusal:
                    yield f"{request.id} was refused without reason: {fact.refusal}"
            case _:
                yield f"{request.id} was answered by {fact.answer}"

    @staticmethod
    def _false(call: _Call, request: Generate, known: ShadowRequest | None) -> str:
        """Why this ask must be refused; "" where it must not."""
        if contents(request) != contents(call.first):
            return "it was used with different contents"
        have = known.tokens.tobytes()[: 4 * request.accepted] if known is not None else b""
        digest = hashlib.sha256(have).digest()
        if request.accepted and (len(have) != 4 * request.accepted or digest != request.accepted_sha256):
            return f"its first {request.accepted} tokens are others"
        return ""

    def _generated(
        self, call: _Call, request: Generate, answer: Generated, known: ShadowRequest
    ) -> Iterator[str]:
        name, raw = request.id, known.tokens.tobytes()
        if not known.finished:
            yield f"{name} was answered before its end was journaled"
        if (answer.id, answer.start) != (name, request.accepted):
            yield f"{name} from {request.accepted} on was answered with {answer.id} from {answer.start} on"
        elif answer.tokens != raw[4 * request.accepted :] or len(answer.logprobs) != len(answer.tokens):
            yield (
                f"{name} was answered with {len(answer.tokens) // 4} tokens from {answer.start} on, "
                f"journaled are {len(known.tokens)}, and they differ"
            )
        if answer.sha256 != hashlib.sha256(raw).digest():
            yield f"{name} was answered with the digest of other tokens"
        if (wrong := wrong_token(known, self._response_of)) is not None:
            yield f"{name} has at position {wrong} a token of another place or weights"
        yield from self._versions(request, answer, known)
        full = len(known.tokens) >= known.limit
        status = "length" if full else "deadline" if known.due else "stop"
        if answer.status != status:
            yield f"{name} has the status {answer.status}, expected {status}"
        whole = replace(answer, start=0, tokens=b"", logprobs=b"")
        if call.answered is not None and call.answered != whole:
            yield f"{name} was answered otherwise before: {call.answered}, now {whole}"
        call.answered = whole

    @staticmethod
    def _versions(request: Generate, answer: Generated, known: ShadowRequest) -> Iterator[str]:
        made: list[tuple[int, int]] = []
        starts = [start for start, _, _ in known.made]
        for (start, version, _), end in zip(known.made, [*starts[1:], len(known.tokens)], strict=False):
            before = made.pop()[1] if made and made[-1][0] == version else 0
            made.append((version, before + end - start))
        reported = [(span.version, span.count) for span in answer.versions]
        if reported != made:
            yield f"{request.id} bears the versions {reported} (version, tokens), made it have {made}"
        first, last = (made[0][0], made[-1][0]) if made else (None, None)
        if (answer.version_start, answer.version_end) != (first, last):
            yield (
                f"{request.id} goes from version {answer.version_start} to {answer.version_end}, "
                f"made it have {first} to {last}"
            )
        for version, _ in made:
            if not admits(request, version):
                yield f"{request.id} has tokens of version {version}; asked for was {gate_of(request)}"

    def _not_ready(self, call: _Call, fact: RequestAnswered, answer: VersionNotReady) -> Iterator[str]:
        request = fact.request
        if call.begun_s is not None and call.begun_s < fact.asked_s:
            yield f"{request.id} was refused for a closed gate, and was begun at {call.begun_s:.1f} s"
        exact = request.exact_version is not None
        target = request.exact_version if exact else request.min_version or 0
        if (answer.target, answer.exact) != (target, exact):
            yield f"{request.id} asked for {gate_of(request)}, not ready is {answer.target}"
        if answer.applied is not None and admits(request, answer.applied):
            yield f"{request.id} was refused for a closed gate, and version {answer.applied} is served"
        waited_s = fact.at_s - fact.asked_s
        if waited_s < min(request.wait_s, request.deadline_s):
            yield f"{request.id} was to wait {request.wait_s:g} s for its gate, and waited {waited_s:.1f} s"
        if not answer.retryable and not (exact and max(self._shadow.published, default=-1) > answer.target):
            yield f"{request.id} was refused because version {answer.target} cannot come any more"


def contents(request: Generate) -> Generate:
    """Fields that make it the same request: all but the times, and the caller's prefix."""
    return replace(request, wait_s=0.0, deadline_s=1.0, accepted=0, accepted_sha256=b"", attempt=1)


def admits(request: Generate, version: int) -> bool:
    """Whether the gate of a request is open to a version."""
    if request.exact_version is not None:
        return version == request.exact_version
    return version >= (request.min_version or 0)


def gate_of(request: Generate) -> str:
    """The gate as text."""
    if request.exact_version is not None:
        return f"exactly {request.exact_version}"
    return "any version" if request.min_version is None else f"{request.min_version} or later"
