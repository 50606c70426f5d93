"""Answers to the callers of single requests. Pure."""

import hashlib

from gleaner.actors.protocol.requests import Generate, Generated, VersionSpan
from gleaner.actors.rollout.state.request_log import RequestLog
from gleaner.supervisor import Refused


def answer_to(message: Generate, log: RequestLog) -> Generated | Refused:
    """The answer to the caller of a finished request: all tokens that the caller does not have yet."""
    tokens = log.tokens_bytes()
    have = tokens[: 4 * message.accepted]
    if message.accepted and (
        len(have) != 4 * message.accepted or hashlib.sha256(have).digest() != message.accepted_sha256
    ):
        return Refused(f"request {message.id}: its first {message.accepted} tokens are others")
    spans = [VersionSpan(version=span.version, count=span.count) for span in log.spans]
    return Generated(
        id=message.id,
        status="deadline" if log.due and not log.full else "length" if log.full or log.cut else "stop",
        start=message.accepted,
        tokens=tokens[4 * message.accepted :],
        logprobs=log.logprobs_bytes()[4 * message.accepted :],
        versions=merged(spans),
        version_start=spans[0].version if spans else None,
        version_end=spans[-1].version if spans else None,
        sha256=hashlib.sha256(tokens).digest(),
        spans=tuple(log.spans) if message.experts else (),
    )


def merged(spans: list[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Join neighbouring spans of one version."""
    found: list[VersionSpan] = []
    for span in spans:
        if found and found[-1].version == span.version:
            span = VersionSpan(version=span.version, count=found.pop().count + span.count)
        found.append(span)
    return tuple(found)
