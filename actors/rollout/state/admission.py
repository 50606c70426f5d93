"""Admission: which batches may be opened, and how much may be open at once.

Owns the limits and the refusals. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.rollout.state.token_log import TokenLog

# Steps that no second checkpoint has yet, the running one, evaluations; more would be a leak.
MAX_OPEN_BATCHES = 16
MAX_OPEN_SINGLES = 4096  # single requests, and answers kept for callers that ask again
MAX_OPEN_REQUESTS = 1 << 17  # the log of an open request is in memory
MAX_OPEN_TOKENS = 1 << 31
"""Most tokens of all open requests: 16 GiB of them, if all reach their limit."""


def refusal_of(log: TokenLog, event: BatchSubmitted) -> str | None:
    """Why this batch cannot be opened, in words for its submitter; None if it can, or is open so."""
    opened = log.batches.get(event.batch)
    if opened is not None:
        same = _contents(opened.as_submitted()) == _contents(event)
        return None if same else f"batch {event.batch} is open with other contents"
    count = sum(len(prompt.seeds) for prompt in event.prompts)
    if event.most > len(event.prompts) > 0:
        count += (event.most - len(event.prompts)) * len(event.prompts[0].seeds)
    if not event.prompts or not all(prompt.tokens and prompt.seeds for prompt in event.prompts):
        return f"batch {event.batch}: every prompt needs tokens and seeds, and there must be a prompt"
    if event.max_new_tokens < 1:
        return f"batch {event.batch}: max_new_tokens is {event.max_new_tokens}, at least 1 is needed"
    if not 0 <= event.temperature < math.inf:
        return f"batch {event.batch}: temperature is {event.temperature}, a number from 0 up is needed"
    for fault in event.sampling.faults() if event.sampling is not None else ():
        return f"batch {event.batch}: {fault}"
    if not 1 <= event.over_sampling < math.inf:
        return f"batch {event.batch}: over_sampling is {event.over_sampling}, a number from 1 up is needed"
    if event.wanted and not 0 < event.wanted <= len(event.prompts) <= event.most:
        return (
            f"batch {event.batch}: {event.wanted} wanted groups, {len(event.prompts)} prompts and at "
            f"most {event.most} groups do not go together"
        )
    if event.race and not event.wanted:
        return f"batch {event.batch}: a race needs a number of wanted groups"
    if event.counted and not (
        event.race and all(0 < event.counted <= len(prompt.seeds) for prompt in event.prompts)
    ):
        return f"batch {event.batch}: {event.counted} counted samples need a race, and as many seeds a prompt"
    most = MAX_OPEN_BATCHES if event.scored else MAX_OPEN_SINGLES
    alike = (batch.submitted.scored == event.scored for batch in log.batches.values())
    if len(log.batches) >= most and sum(alike) >= most:
        return f"batch {event.batch}: {most} are open, release one first"
    if len(log.requests) + count > MAX_OPEN_REQUESTS:
        return f"batch {event.batch}: {count} requests more than the {MAX_OPEN_REQUESTS} that may be open"
    most = log.most_tokens + count * event.max_new_tokens
    if most > MAX_OPEN_TOKENS:
        return f"batch {event.batch}: open requests may have {most} tokens, {MAX_OPEN_TOKENS} can be held"
    return None


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """The longest prompt and the longest response that an engine takes, in tokens."""

    prompt: int
    response: int


def unfit(prompts: Sequence[Prompt], most: int) -> str | None:
    """Why no request can be made of these prompts, or no engine ever takes one, in words that end the
    sentence "a prompt ..."; None if all fit. most: tokens of the longest prompt that an engine takes."""
    for prompt in prompts:
        if not prompt.tokens or not prompt.seeds:
            return f"has {len(prompt.tokens)} tokens and {len(prompt.seeds)} seeds, each needs some"
        if not 0 <= min(prompt.tokens) <= max(prompt.tokens) < 1 << 32:
            return f"has token {min(prompt.tokens)} or {max(prompt.tokens)}, expected numbers of 32 bits"
        if len(prompt.tokens) > most:
            return f"has {len(prompt.tokens)} tokens, engine.max_prompt_tokens is {most}"
    return None


def _contents(event: BatchSubmitted) -> tuple[object, ...]:
    """What identifies a batch. The number of wanted groups is not included: the first submission fixes it. A
    single request has no step, so the newest version at its arrival is not included either."""
    version = event.version if event.scored or event.min_version is None else 0
    drawn = event.temperature, event.sampling, event.experts, event.scores
    return version, event.min_version, event.prompts, event.max_new_tokens, drawn, event.scored
