"""TokenLog: the tokens generated so far for each request of the open batches.

Owns the open batches with their requests (`request_log`), and which groups were handed out. It does not know
tickets, frames or streams (`state` does), nor where a request should go next (`dispatch.placement` does).
Pure: no clock, no I/O.

Invariants (`TokenLog.check`): the spans of a request join without gap or overlap and cover all of its tokens;
every span bears a version that the request's batch admits; a group is handed out only when it is complete.
"""

from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import msgspec

from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.rollout.state.group_outcomes import GroupOutcomes
from gleaner.actors.rollout.state.group_policy import seed_again
from gleaner.actors.rollout.state.queue import RequestQueue
from gleaner.actors.rollout.state.race_keys import RaceKeys
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.actors.rollout.state.token_columns import TokenColumns

_ENDED = (RequestState.FINISHED, RequestState.DROPPED)


@dataclass(slots=True)
class Batch:
    """An open batch: its submission, its requests by group, and the groups that `taker` has."""

    submitted: BatchSubmitted
    groups: list[list[RequestLog]]
    number: int = 0
    """In the order in which batches were opened."""
    taker: int = 0
    taken: set[int] = field(default_factory=set)
    verdicts: int = 0
    """Number of verdicts, and of decisions about groups: while it is the same, no other group is due."""
    fates: GroupOutcomes = field(default_factory=GroupOutcomes)
    past: list[RequestLog] = field(default_factory=list)
    """Requests whose samples were generated again: they count no more, and stay for the ledger."""
    surplus: list[RequestLog] = field(default_factory=list)
    """Requests of closed groups that do not count; they stay for the ledger."""
    race: RaceKeys = field(default_factory=RaceKeys)

    @property
    def name(self) -> str:
        return self.submitted.batch

    def complete(self, group: int) -> bool:
        """All samples of the group are finished and have their verdicts."""
        return all(log.status for log in self.groups[group])  # `judged`, without a call for each

    def due_but(self, have: Collection[int]) -> list[int]:
        """The groups, without those, that are complete and count: the trainer may have them. Runs after each
        verdict, so it has no call for each group."""
        due, kept, selects = [], self.fates.kept, self.selects
        for group, logs in enumerate(self.groups):
            for log in logs:
                if not log.status:  # as `complete`
                    break
            else:
                if group not in have and (not selects or group in kept):
                    due.append(group)
        return due

    def closed(self, group: int) -> bool:
        """The samples of the group that count are known, and finished."""
        if self.submitted.counted and group not in self.fates.closed:
            return False
        for log in self.groups[group]:  # a race calls this hundreds of times in a decision
            if log.state not in _ENDED and not log.again:
                break
        else:
            return True
        return False

    @property
    def selects(self) -> bool:
        """Not every group counts: each is decided separately."""
        return bool(self.submitted.wanted)

    @property
    def wanted(self) -> int:
        """How many groups it ends with."""
        return self.submitted.wanted or len(self.groups)

    def prompt(self, group: int) -> Prompt:
        """The prompt of this group, submitted with the batch or added later."""
        first = len(self.submitted.prompts)
        return self.submitted.prompts[group] if group < first else self.fates.added[group - first]

    @property
    def most_tokens(self) -> int:
        """Tokens of its requests if all reach their limit."""
        return (sum(map(len, self.groups)) + len(self.surplus)) * self.submitted.max_new_tokens

    def as_submitted(self) -> BatchSubmitted:
        """The submission with the tokens of its prompts, which `submitted` lacks."""
        whole = map(self._whole, range(len(self.submitted.prompts)))
        return msgspec.structs.replace(self.submitted, prompts=tuple(whole))

    def as_added(self) -> tuple[Prompt, ...]:
        """The prompts drawn later, with their tokens."""
        return tuple(map(self._whole, range(len(self.submitted.prompts), len(self.groups))))

    def _whole(self, group: int) -> Prompt:
        return msgspec.structs.replace(self.prompt(group), tokens=tuple(self.groups[group][0].prompt))

    def delivered(self, group: int) -> bool:
        """Its tokens went to a taker and are held no longer."""
        return any(log.crc is not None for log in self.groups[group])

    def ready(self, taker: int) -> list[int]:
        """Groups that are due and that this taker does not have yet; none for a taker that a newer one has
        replaced."""
        if taker < self.taker:
            return []
        taken = self.taken if taker == self.taker else frozenset[int]()
        return self.due_but(taken)

    def requests(self) -> Iterator[RequestLog]:
        """All requests; those whose samples were generated again are first, those that do not count in their
        closed groups are last."""
        yield from self.past
        for group in self.groups:
            yield from group
        yield from self.surplus

    def close_group(self, group: int, samples: Collection[int]) -> list[RequestLog]:
        """These samples of the group count; returns the requests of the others."""
        others = [log for log in self.groups[group] if log.sample not in samples]
        self.groups[group] = [log for log in self.groups[group] if log.sample in samples]
        self.surplus += others
        self.fates.closed[group] = tuple(sorted(samples))
        return others


def request_id(batch: str, group: int, sample: int, again: int = 0) -> str:
    """The name of a request: the same for the same place in a batch, so it can key retried asks."""
    return f"{batch}/{group}/{sample}~{again}" if again else f"{batch}/{group}/{sample}"


def _light(prompt: Prompt) -> Prompt:
    """The prompt without its tokens: its requests have them, as numbers of 4 bytes and not as objects."""
    return msgspec.structs.replace(prompt, tokens=())


class TokenLog:
    """The requests of the open batches. Methods change state without checks; `RolloutState` checks."""

    def __init__(self) -> None:
        self.columns = TokenColumns()
        self.batches: dict[str, Batch] = {}
        self.requests: dict[str, RequestLog] = {}
        self.waits = RequestQueue()
        self.most_tokens = 0
        """Tokens of all open requests, if they reach their limits."""
        self._opened = 0  # batches, ever
        self._let_go = 0  # tokens of open requests that are held no longer

    def open(self, event: BatchSubmitted) -> Batch:
        light = msgspec.structs.replace(event, prompts=tuple(map(_light, event.prompts)))
        self._opened += 1
        batch = self.batches[event.batch] = Batch(light, [], self._opened)
        self._make(batch, event.prompts)
        return batch

    def add(self, batch: Batch, prompts: tuple[Prompt, ...]) -> list[RequestLog]:
        """Add more groups to an open batch; returns their requests."""
        batch.fates.added.extend(map(_light, prompts))
        return self._make(batch, prompts)

    def again(self, log: RequestLog) -> RequestLog:
        """The request that generates the sample of `log` again; `log` itself moves to `past`."""
        batch, again = self.batches[log.batch], log.again + 1
        first_seed = batch.prompt(log.group).seeds[log.sample]
        new = self._request(
            batch.submitted, log.group, log.sample, log.prompt, seed_again(first_seed, again), again
        )
        batch.past.append(log)
        group = batch.groups[log.group]
        group[group.index(log)] = new
        self._enter(new)
        return new

    def _make(self, batch: Batch, prompts: tuple[Prompt, ...]) -> list[RequestLog]:
        made = []
        for group, prompt in enumerate(prompts, len(batch.groups)):
            tokens = array("I", prompt.tokens)
            logs = [
                self._request(batch.submitted, group, sample, tokens, seed)
                for sample, seed in enumerate(prompt.seeds)
            ]
            batch.groups.append(logs)
            made += logs
        for log in made:
            self._enter(log)
        self.most_tokens += len(made) * batch.submitted.max_new_tokens
        return made

    def _request(
        self, event: BatchSubmitted, group: int, sample: int, prompt: "array[int]", seed: int, again: int = 0
    ) -> RequestLog:
        return RequestLog(
            id=request_id(event.batch, group, sample, again),
            batch=event.batch,
            group=group,
            sample=sample,
            prompt=prompt,
            seed=seed,
            max_new_tokens=event.max_new_tokens,
            temperature=event.temperature,
            version=event.version,
            min_version=event.min_version,
            columns=self.columns,
            slot=self.columns.begin(event.max_new_tokens),
            again=again,
        )

    def _enter(self, log: RequestLog) -> None:
        self.requests[log.id] = log
        self._wait(log)

    def _wait(self, log: RequestLog) -> None:
        self.waits.add(log.id, log.batch, log.group, log.sample, len(log), log.attempts)

    def empty(self, log: RequestLog) -> None:
        """Forget what was generated for a request that waits."""
        self.waits.remove(log.id)
        self.columns.end(log.slot)
        log.slot = self.columns.begin(log.max_new_tokens)
        log.restore(b"", b"", ())
        self._wait(log)

    def close(self, name: str) -> Batch:
        batch = self.batches.pop(name)
        self.most_tokens -= batch.most_tokens
        for log in batch.requests():
            del self.requests[log.id]
            self.waits.remove(log.id)
            if log.crc is None:
                self.columns.end(log.slot)
            else:
                self._let_go -= len(log)
        return batch

    def move(self, log: RequestLog, state: RequestState) -> None:
        log.state = state
        self.waits.remove(log.id)
        if state is RequestState.QUEUED:
            self._wait(log)

    def queued(self) -> list[RequestLog]:
        """Requests that wait for an instance.

        Requests that were started before are first, those with the longest prefix foremost: they delay their
        groups most. The others keep the order of their batch.
        """
        return [self.requests[name] for name in self.waits.every()]

    @property
    def waiting(self) -> int:
        """How many requests wait for an instance."""
        return len(self.waits)

    def first(self, batch: str, count: int) -> list[RequestLog]:
        """The next `count` requests of this batch that wait for an instance."""
        return [self.requests[name] for name in self.waits.first(batch, count)]

    def let_go(self, log: RequestLog) -> None:
        """Hold its tokens no longer: they are durable elsewhere, or not needed. Their number and CRC-32 stay
        for the ledger."""
        if log.crc is None:
            self._let_go += len(log)
            log.let_go(len(log), log.tokens_crc())

    def restore_let_go(self, log: RequestLog, count: int, crc: int) -> None:
        """Restore the same from the log at rest."""
        self._let_go += count
        log.let_go(count, crc)

    @property
    def standing(self) -> int:
        """Tokens of all open requests, held or let go."""
        return self.columns.held() + self._let_go

    def in_flight(self) -> int:
        """Requests that an instance has."""
        return sum(log.state is RequestState.DISPATCHED for log in self.requests.values())

    def unscored(self) -> list[RequestLog]:
        """Finished requests without a verdict: those to request from the reward proxy, also after a
        restart."""
        return [
            log
            for log in self.requests.values()
            if log.state is RequestState.FINISHED
            and not log.judged
            and self.batches[log.batch].submitted.scored
        ]

    def check(self) -> list[str]:
        """Every broken invariant, in words; empty when all hold."""
        faults = [fault for log in self.requests.values() for fault in log.faults()]
        for batch in self.batches.values():
            faults += [
                f"{batch.name}: group {group} was handed out incomplete"
                for group in sorted(batch.taken)
                if not batch.complete(group)
            ]
            faults += [f"{batch.name}: {text}" for text in batch.fates.faults(batch.wanted, batch.taken)]
        faults += self.columns.faults()
        if self.most_tokens != (most := sum(batch.most_tokens for batch in self.batches.values())):
            faults.append(f"open requests may have {most} tokens, {self.most_tokens} are counted")
        waiting = {log.id for log in self.requests.values() if log.state is RequestState.QUEUED}
        if waiting != self.waits.names():
            faults.append(f"the queue differs from the states by {sorted(waiting ^ self.waits.names())[:3]}")
        return faults
