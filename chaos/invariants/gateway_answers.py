"""Gateway answers: what HTTP clients receive, against what the modelled engines make.

Owns the comparison of tokens, log-probs, texts, offsets, versions, usage and reasons with the truth: the
tokens that the journal has for a request, and those that its model makes from prompt, seed, position and
weights.
"""

import struct
from collections.abc import Iterable, Iterator

from gleaner.actors.rollout.state.events import BatchReleased
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Committed, Fact
from gleaner.chaos.invariants.gateway_facts import STATUSES, CallOver, CallSent, GatewayCall, Received
from gleaner.chaos.invariants.gateway_requests import GatewayRequests
from gleaner.chaos.invariants.shadow import ShadowRequest
from gleaner.chaos.invariants.truth import Truth, whole
from gleaner.sim.models.vocabulary import word

DEADLINE = "deadline"
TICK_S = 0.1
"""Between the clock of a client, which begins before the gateway's, and a deadline."""
REASONS = ("as many as gateway.max_concurrent admits", "no weights are published yet", "space")
"""Of a call that is refused for now, or ends with an error: the limit, no weights, a full disk."""


class GatewayAnswers(Check):
    """See `promise`. requests: shared with the check of their times, which is asked after this one."""

    fact_kinds = (CallSent, CallOver, Committed)
    name = "gateway answers"
    promise = "an HTTP client gets each token of its request once, in order, with text, log-prob and usage"
    meaning = (
        "If this fails, a death behind the gateway is no pause: a client trains on, or shows, a response "
        "that no engine made, or is billed for tokens that it did not get."
    )

    def __init__(self, requests: GatewayRequests, truth: Truth | None) -> None:
        self._requests, self._truth = requests, truth

    def see(self, fact: Fact) -> Iterable[str]:
        match fact:
            case CallSent():
                self._requests.sent(fact.call, fact.at_s)
            case CallOver():
                self._requests.over(fact.call, fact.at_s)
                yield from some(f"{fact.call.name} {text}" for text in self._over(fact))
            case Committed():
                for message in fact.messages:
                    if isinstance(message, BatchReleased):
                        self._requests.released(message.batch)
                yield from some(self._requests.committed(fact))

    def _over(self, fact: CallOver) -> Iterator[str]:
        call, wanted = fact.call, STATUSES.get(fact.call.wrong)
        if fact.extra:
            yield f"got {fact.extra}"
        if fact.outcome in ("refused", "whole", "error") and wanted not in (None, fact.status):
            yield f"is wrong ({call.wrong}) and got the status {fact.status}, not {wanted}"
        elif fact.outcome in ("refused", "error") and not call.wrong and not _for_now(fact):
            yield f"was refused with {fact.status}: {fact.error}"
        if fact.status == 500 or fact.error.startswith("InternalError"):
            yield f"met a defect: {fact.error}"
        for index, (key, got) in enumerate(zip(call.origins(), fact.choices, strict=True)):
            lives = self._requests.lives(key)
            waited_s = fact.at_s - fact.sent_s if call.attempt == 0 else call.deadline_s
            wrong = [list(self._choice(call, got, known, waited_s)) for known in lives]
            if not lives and (got.tokens or got.text):
                yield f"choice {index} has {got.text[:20]!r}, and the journal does not have it"
            elif lives and all(wrong):
                yield from (f"choice {index} {text}" for text in wrong[-1][:2])
        if fact.outcome == "whole":
            yield from self._whole(fact)

    def _whole(self, fact: CallOver) -> Iterator[str]:
        call = fact.call
        for index, got in enumerate(fact.choices):
            if not got.finish:
                yield f"was answered, and choice {index} has no end"
        if not call.ids:
            return
        prompt = sum(len(one) // 4 for one in call.prompts)
        made = sum(len(got.tokens) for got in fact.choices)
        if fact.usage is None:
            if call.usage or not call.stream:
                yield "was answered without its usage"
        elif fact.usage != (prompt, made, prompt + made):
            yield f"has the usage {fact.usage}, it sent {prompt} tokens and got {made}"

    def _choice(
        self, call: GatewayCall, got: Received, known: ShadowRequest, waited_s: float
    ) -> Iterator[str]:
        """What is wrong with a choice, if it is of this request. waited_s: by its client, until the end."""
        tokens = known.tokens.tolist()
        texts = [word(token) for token in tokens]
        cut, text = _stopped(texts, call.stop)
        stopped = cut is not None
        if cut is not None:
            tokens, texts = tokens[:cut], texts[:cut]
        if got.tokens != tokens[: len(got.tokens)]:
            at = next(n for n, (a, b) in enumerate(_longest(got.tokens, tokens)) if a != b)
            yield f"has at position {at} another token than the journal"
            return
        shown = len(got.tokens)
        if call.logprobs and call.ids and len(got.logprobs) != shown:
            yield f"has {shown} tokens and {len(got.logprobs)} log-probs"
        made = whole(self._truth, known) if self._truth is not None else None
        if made is not None:
            raw = made[0][: 4 * len(tokens)]
            if raw != known.tokens.tobytes()[: 4 * len(tokens)]:
                yield "has a token in the journal that its model does not make"
            elif struct.pack(f"<{len(got.logprobs)}f", *got.logprobs) != made[1][: 4 * len(got.logprobs)]:
                yield "has a log-prob that its model does not give"
        if not text.startswith(got.text):
            yield f"has the text {got.text[-30:]!r} where its tokens read {text[: len(got.text)][-30:]!r}"
        starts = [sum(map(len, texts[:at])) for at in range(len(got.offsets))]
        if got.offsets != starts:
            yield f"has the offsets {got.offsets[-3:]}, its tokens begin at {starts[-3:]}"
        if got.stop_reason == DEADLINE and waited_s < call.deadline_s - TICK_S:
            yield f"ended at its deadline of {call.deadline_s:g} s after {waited_s:.1f} s"
        if got.finish:
            yield from self._end(call, got, known, stopped, text)

    def _end(
        self, call: GatewayCall, got: Received, known: ShadowRequest, stopped: bool, text: str
    ) -> Iterator[str]:
        count = len(known.tokens)
        if got.stop_reason == DEADLINE:
            if got.finish != "length":
                yield f"ended at its deadline as {got.finish}"
            return  # with the tokens that it has then
        full = len(known.tokens) >= known.limit
        wanted = ("stop", call.stop) if stopped else ("length" if full else "stop", None)
        if (got.finish, got.stop_reason) != wanted:
            yield f"ended as {(got.finish, got.stop_reason)}, expected {wanted}: it has {count} tokens"
            return
        if not stopped and not known.finished:
            yield "ended before the journal has its end"
        if got.text != text:
            yield f"ended with {len(got.text)} characters, its {count} tokens have {len(text)}"
        tokens = sum(number for _, number in got.spans)
        if call.ids and (tokens != len(got.tokens) or (not stopped and tokens != count)):
            yield f"ended with {len(got.tokens)} of {count} tokens, its versions count {tokens}"
        if got.spans != _spans(known, tokens):
            yield f"bears the versions {got.spans}, made it have {_spans(known, tokens)}"


def _for_now(fact: CallOver) -> bool:
    """Whether a later call may be answered, for a reason that there is."""
    return fact.status in (200, 503) and any(reason in fact.error for reason in REASONS)


def _longest(one: list[int], other: list[int]) -> Iterator[tuple[int | None, int | None]]:
    for at in range(max(len(one), len(other))):
        yield one[at] if at < len(one) else None, other[at] if at < len(other) else None


def _stopped(texts: list[str], stop: str) -> tuple[int | None, str]:
    """Tokens up to the end of the stop string, and the text before it; None where it does not occur."""
    text = ""
    for count, shown in enumerate(texts, 1):
        text += shown
        if stop and (at := text.find(stop)) >= 0:
            return count, text[:at]
    return None, text


def _spans(known: ShadowRequest, count: int) -> list[tuple[int, int]]:
    """(version, tokens) of the first tokens of a request, neighbours of one version as one."""
    ends = [start for start, _, _ in known.made[1:]] + [len(known.tokens)]
    found: list[tuple[int, int]] = []
    for (start, version, _), end in zip(known.made, ends, strict=True):
        here = min(end, count) - start
        if here > 0:
            before = found.pop()[1] if found and found[-1][0] == version else 0
            found.append((version, before + here))
    return found
