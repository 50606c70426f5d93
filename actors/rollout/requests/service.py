"""RequestService: single requests, continued by any instance with a fitting version.

Owns the callers that wait for an answer, and how long answers are kept; `version_gate` has the version gate.
A single request is a batch of one that is not scored. Like all others it has the token log, the tickets and
the journal, so it survives the death of an instance and of the manager. The contract with the caller is
docs/versions.md: the id names the request, the same id with the same contents is the same request, each token
is appended once.
"""

import hashlib
import math
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.protocol.instances import CannotTake
from gleaner.actors.protocol.requests import BATCH, Generate, VersionNotReady
from gleaner.actors.protocol.rollout import Weights
from gleaner.actors.rollout.dispatch.session_affinity import MAX_SESSION, SessionAffinity
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.requests.answers import answer_to
from gleaner.actors.rollout.requests.deadlines import Deadlines
from gleaner.actors.rollout.requests.token_followers import TokenFollowers
from gleaner.actors.rollout.requests.version_gate import VersionGates
from gleaner.actors.rollout.state.admission import MAX_OPEN_SINGLES, TokenLimits
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.actors.rollout.state.token_log import request_id
from gleaner.supervisor import AskFailed, Context, Deadline, Deferred, Refused, Suspended

KEPT_S = 600.0  # an answer, for a caller that asks again: longer than any pause of a caller that lost it
MAX_KEPT = 512  # answers; the oldest is dropped first
MAX_DEADLINE_S = 3600.0

DEADLY = "every engine that took it died at once, as it ran there alone: it is not tried again"

Open = Callable[[BatchSubmitted, Weights], Awaitable[None]]
"""Opens a batch. Raises Refused or Suspended."""
Close = Callable[[Sequence[str]], Awaitable[None]]
"""Releases batches, by their names: those that are open."""


@dataclass(frozen=True, slots=True)
class RequestServices:
    """What a single request has while it is open: its version gate, deadline, follower and session."""

    version_gates: VersionGates
    deadlines: Deadlines
    token_followers: TokenFollowers
    sessions: SessionAffinity


class RequestService:
    """See the module. Call `finished` at the end of a request, and `look` from time to time.

    Args:
        limits: of its prompt and response.
        services: used by every request; `sessions` is shared with the dispatcher.
        open, close: of the batch that a single request is.
    """

    def __init__(
        self,
        ctx: Context,
        journaled: JournaledState,
        limits: TokenLimits,
        services: RequestServices,
        open: Open,
        close: Close,
    ) -> None:
        self._ctx, self._journaled, self._limits = ctx, journaled, limits
        self._version_gates, self._deadlines = services.version_gates, services.deadlines
        self._token_followers, self._sessions = services.token_followers, services.sessions
        self._open, self._close = open, close
        self._waiting: dict[str, tuple[Generate, Deferred]] = {}
        self._deadly: dict[bytes, None] = {}  # prompts, by digest, the newest last
        now = ctx.now()
        self._kept = {
            name: Deadline.after(KEPT_S, now)
            for name, batch in journaled.state.log.batches.items()
            if not batch.submitted.scored
        }
        self._ended = {name for name in self._kept if self._log(name).state is RequestState.FINISHED}
        """Those whose end is in the journal. One whose end is not committed could end otherwise after a
        restart."""
        for name in self._kept:  # their callers ask again, or are gone
            self._deadlines.until(self._log(name).id, MAX_DEADLINE_S)

    def ask(self, message: Generate) -> Deferred:
        """Answered when the response is complete, or the gate is not met in time. Raises Refused for an
        invalid request, and for an id that was already used with different contents."""
        self._check(message)
        deferred = Deferred()
        name = BATCH + message.id
        earlier = self._waiting.get(name)
        if earlier is not None:
            if self._batch(earlier[0], 0) != self._batch(message, 0):
                raise Refused(f"request {message.id} was already used with different contents")
            earlier[1].answer(Refused(f"request {message.id} was asked again"))
        self._waiting[name] = (message, deferred)
        if name in self._journaled.state.log.batches:
            self._begun(name, message)
        else:
            self._ctx.background(self._begin(name, message, deferred), f"begin of {name}")
        return deferred

    async def cancel(self, ids: list[str]) -> None:
        """No caller waits for these any more: running ones reach their deadline now, the others are
        forgotten."""
        over: list[str] = []
        for id in ids:
            name = BATCH + id
            if name in self._ended:
                over.append(name)
            elif name in self._journaled.state.log.batches:
                self._deadlines.until(self._log(name).id, 0.0)
            elif name in self._waiting:
                self._waiting.pop(name)[1].answer(Refused(f"request {id} was cancelled"))
        await self._forget(over)

    def finished(self, log: RequestLog) -> None:
        """A single request has finished, and its end is committed."""
        self._token_followers.forget(log.id)
        self._sessions.ended(log.id)
        self._ended.add(log.batch)
        self._kept[log.batch] = Deadline.after(KEPT_S, self._ctx.now())
        self._answer(log.batch, log)

    async def cannot_be(self, message: CannotTake) -> None:
        """Refuse and forget a request that no engine can serve (it has a token that the model does not know,
        say): other instances would refuse it too, again and again."""
        stream = self._journaled.state.streams.alive(message.instance, message.incarnation)
        if stream is None or not message.never:
            return
        live = stream.live()
        for request in [live[ticket].request for ticket in message.tickets if ticket in live]:
            log = self._journaled.state.log.requests.get(request)
            if log is None or self._journaled.state.log.batches[log.batch].submitted.scored:
                continue  # a training prompt is encoded with the model's own tokenizer: it was checked there
            await self._refuse(log, f"no instance serves it: {message.why}")

    async def deadly(self, request: str) -> None:
        """Engines die of this request: refuse it, and its prompt from now on."""
        log = self._journaled.state.log.requests.get(request)
        if log is not None:
            self._deadly[hashlib.sha256(log.prompt.tobytes()).digest()] = None
            if len(self._deadly) > MAX_KEPT:
                del self._deadly[next(iter(self._deadly))]
            self._ctx.log.error("request ended, every engine that took it died at once: %s", log.id)
            await self._refuse(log, DEADLY)

    async def _refuse(self, log: RequestLog, why: str) -> None:
        """Refuse the request and forget it."""
        waiting = self._waiting.pop(log.batch, None)
        if waiting is not None:
            waiting[1].answer(Refused(f"request {waiting[0].id}: {why}"))
        self._kept.pop(log.batch, None)
        self._token_followers.forget(log.id)
        self._sessions.ended(log.id)
        await self._close([log.batch])

    async def look(self) -> None:
        """Forget answers that were kept long enough."""
        now, batches = self._ctx.now(), self._journaled.state.log.batches
        over = [
            name
            for name in self._kept
            if name not in batches or self._log(name).state is RequestState.FINISHED
        ]
        most = len(over) - MAX_KEPT
        await self._forget(
            [name for number, name in enumerate(over) if number < most or self._kept[name].passed(now)]
        )

    async def _forget(self, names: list[str]) -> None:
        """Forget kept answers, all in one commit, since requests wait behind it."""
        for name in names:
            self._kept.pop(name, None)
            self._ended.discard(name)
        await self._close(names)

    async def _make_room(self) -> None:
        """Forget the oldest kept answers before a new request would be refused for lack of capacity."""
        beyond = len(self._kept) + len(self._waiting) + 1 - MAX_OPEN_SINGLES
        if beyond > 0:
            await self._forget([name for name in self._kept if name in self._ended][:beyond])

    def _begun(self, name: str, message: Generate) -> None:
        """Its batch is open: start its deadline, and send its follower the tokens from the accepted ones
        on."""
        log = self._log(name)
        cancelled = name not in self._waiting  # while its batch was opened
        self._deadlines.until(log.id, 0.0 if cancelled else message.deadline_s)
        if name not in self._ended:
            self._token_followers.follow(message.id, log, message.follower, message.accepted)
        self._answer(name, log)

    def _log(self, name: str) -> RequestLog:
        return self._journaled.state.log.batches[name].groups[0][0]

    def _check(self, message: Generate) -> None:
        count = len(message.prompt) // 4
        opened = self._journaled.state.log.batches.get(BATCH + message.id)
        if not message.id or "/" in message.id or len(message.id) > 200:
            raise Refused(f"id {message.id!r}: expected 1 to 200 characters without a slash")
        most_prompt = self._limits.prompt + (
            self._limits.response if message.experts else 0
        )  # see `BatchSubmission`
        if not count or len(message.prompt) % 4 or count > most_prompt:
            raise Refused(f"request {message.id}: expected a prompt of 1 to {most_prompt} tokens")
        if message.experts and not message.follower:
            raise Refused(f"request {message.id}: experts are sent to a follower, and the request names none")
        if not 1 <= message.max_new_tokens <= self._limits.response:
            raise Refused(f"request {message.id}: expected max_new_tokens from 1 to {self._limits.response}")
        if message.min_version is not None and message.exact_version is not None:
            raise Refused(f"request {message.id}: min_version and exact_version exclude each other")
        if not 0 < message.deadline_s <= MAX_DEADLINE_S or not 0 <= message.temperature < math.inf:
            most = f"{MAX_DEADLINE_S:g} s"
            raise Refused(f"request {message.id}: expected a temperature from 0, a deadline up to {most}")
        if self._deadly and hashlib.sha256(message.prompt).digest() in self._deadly:
            raise Refused(f"request {message.id}: {DEADLY}")
        for fault in message.sampling.faults() if message.sampling is not None else ():
            raise Refused(f"request {message.id}: {fault}")
        if not message.wait_s >= 0 or message.accepted < 0:
            raise Refused(f"request {message.id}: expected wait_s and accepted from 0")
        if len(message.session) > MAX_SESSION:
            raise Refused(f"request {message.id}: expected a session of at most {MAX_SESSION} characters")
        if opened is not None:
            refusal = self._journaled.state.refusal(self._batch(message, opened.submitted.version))
            if refusal is not None:
                raise Refused(f"request {message.id} was already used with different contents")

    def _batch(self, message: Generate, newest: int) -> BatchSubmitted:
        exact = message.exact_version
        tokens = tuple(array("I", message.prompt))
        return BatchSubmitted(
            batch=BATCH + message.id,
            version=newest if exact is None else exact,
            min_version=None if exact is not None else message.min_version or 0,
            prompts=(Prompt(split="", index=0, tokens=tokens, seeds=(message.seed,)),),
            max_new_tokens=message.max_new_tokens,
            temperature=message.temperature,
            scored=False,
            sampling=message.sampling,
            experts=message.follower if message.experts else "",
            scores=message.scores,
        )

    async def _begin(self, name: str, message: Generate, deferred: Deferred) -> None:
        """Wait for the gate, then open the batch. An earlier call for the same id may have opened it
        meanwhile."""
        met = await self._version_gates.met(message, lambda: name in self._journaled.state.log.batches)
        if name not in self._waiting:
            return  # it was cancelled
        outcome: VersionNotReady | AskFailed | None = None
        if name not in self._journaled.state.log.batches:
            exact = message.exact_version
            weights = self._journaled.newest_weights() if exact is None else self._weights(exact)
            if met and weights is not None:
                await self._make_room()
                if name not in self._waiting:
                    return  # cancelled meanwhile: that was answered, and a death would forget it
                self._sessions.begun(request_id(name, 0, 0), message.session)
                try:
                    await self._open(self._batch(message, weights.version), weights)
                except (Refused, Suspended) as refusal:
                    self._sessions.ended(request_id(name, 0, 0))
                    outcome = refusal
            else:
                outcome = self._version_gates.not_ready(message)
        if outcome is None:
            if name in self._journaled.state.log.batches:
                self._begun(name, message)
                return
            self._sessions.ended(request_id(name, 0, 0))
            outcome = Refused(f"request {message.id} was closed while it was opened: ask again")
        if self._waiting.get(name) == (message, deferred):
            del self._waiting[name]
        deferred.answer(outcome)

    def _weights(self, version: int) -> Weights | None:
        known = self._journaled.state.versions.known.get(version)
        if known is None:
            return None
        return Weights(version=known.version, root=known.root, sources=known.sources)

    def _answer(self, name: str, log: RequestLog) -> None:
        """Answer the pending caller if the request is finished."""
        if name in self._ended and name in self._waiting:
            message, deferred = self._waiting.pop(name)
            deferred.answer(answer_to(message, log))
