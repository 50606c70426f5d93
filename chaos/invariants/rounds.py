"""Rounds: kinds, draws and the queue of a job with rounds, by the controller's and the manager's journals.

Owns a second copy of the long queue, with rules that are written again here on purpose.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.rollout.state.events import GroupsAdded, GroupsDropped, GroupsKept
from gleaner.actors.training.draw_events import RoundDrawn, RoundRedrawn, RoundSettled
from gleaner.actors.training.draw_snapshots import RoundsDrawn
from gleaner.actors.training.job_journal import JobSnapshot, StepFinished
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Committed, Fact
from gleaner.chaos.invariants.truth import Truth, WantedRounds
from gleaner.rlctl.audit.invariants import step_of

EIGHTHS = (1, 2, 3, 4, 6, 8)
"""Of the prompts of a step: what a short round may launch more, where plans decide it."""
MOST_SHORTS = 8
"""Rounds by which the share of uniform groups is known, at most."""
HOLDS = 3
"""Draws of a problem that was deferred that may be deferred again without a launch."""
KEPT = 64
"""Rounds that are kept: many more than are open at a time."""


@dataclass(slots=True)
class _Round:
    """One round. surplus: groups that it launched beside those that count, without spare ones. kept, uniform:
    its groups by the manager's journal; submitted: groups there."""

    kind: str
    surplus: int
    spare: int = 0
    draws: list[int] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    uniform: set[int] = field(default_factory=set)
    submitted: int = 0
    settled: bool = False


class DrawsKept(Check):
    """See the module."""

    fact_kinds = (Committed,)
    committed_kinds = (
        RoundDrawn, RoundRedrawn, RoundSettled, BatchSubmitted, GroupsAdded, GroupsKept, GroupsDropped,
        StepFinished, JobSnapshot,
    )  # fmt: skip
    name = "rounds"
    promise = (
        "every draw of a job with rounds is launched in its turn, trained once or dropped as uniform, and "
        "waits in the queue meanwhile, first deferred first out, for no longer than a period and two steps; "
        "a short round launches as many spare groups as the share of uniform ones asks for; "
        "it keeps its seeds; a step is a long round exactly when the queue fills one, or the job ends; with "
        "`auto` rounds begin and end between periods only"
    )
    meaning = (
        "If this fails, hard problems are lost, or trained twice, or never, or drawn again until they are "
        "short: the policy learns from other responses than it makes."
    )

    def __init__(self, truth: Truth) -> None:
        self._truth, self._wanted = truth, truth.wanted
        self._next = 0
        self._queue: list[int] = []
        self._first: dict[int, int] = {}  # the step that launched a draw first
        self._rounds: dict[str, _Round] = {}
        self._holds: dict[int, int] = {}  # by problem: draws that may be deferred without a launch
        self._uniform: list[tuple[int, int]] = []  # groups that counted and were dropped, by round

    def see(self, fact: Fact) -> Iterable[str]:
        rounds = self._wanted.rounds
        if rounds is not None and isinstance(fact, Committed):
            for message in fact.messages:
                yield from some(self._journaled(message, rounds, fact.stream))

    def _journaled(self, message: object, rounds: WantedRounds, stream: str) -> Iterator[str]:
        match message:
            case RoundDrawn():
                yield from self._drawn(message, rounds)
            case RoundRedrawn():
                one = self._rounds[message.batch]
                for group, number in zip(message.groups, message.draws, strict=True):
                    yield from self._new(message.batch, number)
                    one.draws[group] = number
            case RoundSettled():
                yield from self._settled(message, rounds)
            case StepFinished():
                found = self._rounds.get(f"step-{message.step}")
                if found is not None and not found.settled:
                    yield f"step {message.step} is over, and its round is not settled"
            case BatchSubmitted() if stream == MANAGER and message.batch in self._rounds:
                if not self._rounds[message.batch].submitted:
                    yield from self._submitted(message, rounds)
            case GroupsAdded() if message.batch in self._rounds:
                one = self._rounds[message.batch]
                if message.first == one.submitted:
                    one.submitted += len(message.prompts)
                    yield from self._prompts(message.batch, message.first, message.prompts, rounds)
            case JobSnapshot():
                yield from self._snapshot(message)
            case GroupsKept() if message.batch in self._rounds:
                self._rounds[message.batch].kept.update(message.groups)
            case GroupsDropped() if message.batch in self._rounds and message.why != "surplus":
                self._rounds[message.batch].uniform.update(message.groups)

    # -- draws --

    def _drawn(self, event: RoundDrawn, rounds: WantedRounds) -> Iterator[str]:
        one = self._rounds.get(event.batch)
        free = self._free()
        if one is None:
            surplus = len(event.draws) - event.spare - self._wanted.prompts
            allowed = self._surpluses(rounds)
            tried = [surplus] if event.kind == "short" else allowed
            due = {self._kind(step_of(event.batch) or 0, rounds, len(free), more) for more in tried}
            whole = rounds.auto and event.kind == ("long" if free else "plain")
            if whole and event.kind not in due and self._in_period():
                yield (
                    f"{event.batch} is a {event.kind} round, as in a job without rounds, in the middle of a "
                    f"period of rounds, with {len(free)} draws queued: {' or '.join(sorted(due))} is due"
                )
            elif event.kind not in due and not whole:
                yield (
                    f"{event.batch} is a {event.kind} round, with {len(free)} draws queued: "
                    f"{' or '.join(sorted(due))} is due"
                )
            spare = self._spare(step_of(event.batch) or 0, rounds, len(free), surplus)
            if event.spare != (spare := spare if event.kind == "short" else 0):
                yield f"{event.batch} launches {event.spare} spare groups, {spare} are due"
            counts = [self._wanted.prompts + more for more in allowed] if event.kind == "short" else []
            counts = [more + event.spare for more in counts] or [self._wanted.prompts]
            if len(event.draws) not in counts:
                yield (
                    f"{event.batch} launches {len(event.draws)} groups, a {event.kind} round has "
                    f"{' or '.join(map(str, counts))}"
                )
            one = self._rounds[event.batch] = _Round(event.kind, surplus, event.spare)
            while len(self._rounds) > KEPT:
                del self._rounds[next(iter(self._rounds))]
        elif event.first != len(one.draws):
            lost = sorted({*one.draws[event.first :]} - {*event.draws})
            if lost:
                yield f"draws {lost} of {event.batch} are lost: it is open, and other draws take their places"
            yield f"{event.batch} has {len(one.draws)} draws, more were drawn from group {event.first} on"
        deferred = free[: len(event.draws)] if one.kind == "long" else []
        if list(event.draws[: len(deferred)]) != deferred:
            yield f"{event.batch} has draws {list(event.draws)}, in the queue {deferred} are first"
        for number in event.held:
            yield from self._held(event, number, rounds)
        for number in sorted((*event.draws[len(deferred) :], *event.held)):
            yield from self._new(event.batch, number)
        one.draws.extend(event.draws)

    def _in_period(self) -> bool:
        """Whether the newest round is a short one: with `auto` rounds begin and end between periods only."""
        return [one.kind for one in self._rounds.values()][-1:] == ["short"]

    def _held(self, event: RoundDrawn, number: int, rounds: WantedRounds) -> Iterator[str]:
        problem = number % self._wanted.problems
        may = rounds.history and event.kind == "short" and len(self._free()) < self._wanted.prompts
        if not may or self._holds.get(problem, 0) < 1:
            yield f"draw {number} of {event.batch} was deferred without a launch, and was not deferred before"
        self._holds[problem] = self._holds.get(problem, 0) - 1
        self._queue.append(number)

    def _new(self, batch: str, number: int) -> Iterator[str]:
        if number != self._next:
            yield f"{batch} has draw {number}, the next new one is {self._next}"
        self._first.setdefault(number, step_of(batch) or 0)
        self._next = max(self._next, number + 1)

    def _kind(self, step: int, rounds: WantedRounds, free: int, surplus: int) -> str:
        ends = rounds.drain and self._room(step, free, surplus) < 0
        return "long" if ends or free >= self._wanted.prompts else "short"

    def _room(self, step: int, free: int, surplus: int) -> int:
        """Draws that the later steps may train yet, where a short round of this step defers its surplus."""
        opened = [one for one in self._rounds.values() if one.kind == "short" and not one.settled]
        coming = sum(one.surplus + one.spare for one in opened)
        later = max(0, self._wanted.steps - step - self._wanted.staleness)
        return later * self._wanted.prompts - free - coming - surplus

    def _spare(self, step: int, rounds: WantedRounds, free: int, surplus: int) -> int:
        """Groups that a short round with this surplus launches for uniform ones: launched / (1 - u) in all,
        twice as many at most, and no more than refills, problems and the end of the job allow."""
        wanted = self._wanted
        if not wanted.drop_uniform:
            return 0
        shorts = math.ceil(wanted.prompts / surplus) if surplus > 0 else MOST_SHORTS
        newest = self._uniform[-min(shorts, MOST_SHORTS) :]
        kept, dropped = (sum(one[at] for one in newest) for at in (0, 1))
        launched = wanted.prompts + surplus
        limits = [launched, wanted.max_refills * wanted.prompts, wanted.problems - launched]
        if rounds.drain:
            limits.append(self._room(step, free, surplus))
        return max(0, min(-(-launched * dropped // kept) if kept else 0, *limits))

    def _surpluses(self, rounds: WantedRounds) -> list[int]:
        """What the next short round may launch beside the groups that count: as the short round before it,
        except where a period begins and plans decide it."""
        newest = [one.surplus for one in self._rounds.values() if one.kind == "short"][-1:]
        before = newest or [rounds.prompts - self._wanted.prompts]
        last = list(self._rounds.values())[-1:]
        if not rounds.planned or (last and last[0].kind == "short"):
            return before
        return sorted({*before, *(-(-self._wanted.prompts * more // 8) for more in EIGHTHS)})

    def _free(self) -> list[int]:
        taken = {number for one in self._rounds.values() if not one.settled for number in one.draws}
        return [number for number in self._queue if number not in taken]

    def _settled(self, event: RoundSettled, rounds: WantedRounds) -> Iterator[str]:
        one = self._rounds[event.batch]
        if one.settled:
            yield f"{event.batch} was settled twice"
            return
        one.settled = True
        whole = one.kind != "short" and not self._wanted.drop_uniform
        trained = [one.draws[group] for group in (range(len(one.draws)) if whole else sorted(one.kept))]
        over = [one.draws[group] for group in sorted(one.uniform)]
        left = sorted(set(one.draws) - set(trained) - set(over))
        if sorted(event.deferred) != left or list(event.deferred) != sorted(event.deferred):
            yield f"{event.batch} deferred draws {list(event.deferred)}, those that did not count are {left}"
        if sorted(event.over) != sorted(over):
            yield f"draws {list(event.over)} of {event.batch} are over, dropped as uniform were {over}"
        step = step_of(event.batch) or 0
        for number in (*trained, *over):
            age = step - self._first.pop(number, step)
            if not self._wanted.drop_uniform and age > (most := self._most_age(rounds)):
                yield f"draw {number} is trained in step {step}, {age} after its launch: {most} is the most"
        if one.kind != "long":
            self._uniform = [*self._uniform[-MOST_SHORTS:], (len(trained), len(over))]
        if one.kind == "short":
            self._holds.update({number % self._wanted.problems: 0 for number in trained})
            self._holds.update({number % self._wanted.problems: HOLDS for number in left})
        known = set(self._queue)
        gone = {*trained, *over}
        self._queue = [number for number in self._queue if number not in gone]
        self._queue += [number for number in event.deferred if number not in known]

    def _most_age(self, rounds: WantedRounds) -> int:
        surplus = rounds.prompts - self._wanted.prompts
        if rounds.planned:
            surplus = min(surplus, -(-self._wanted.prompts * EIGHTHS[0] // 8))
        period = math.ceil(self._wanted.prompts / surplus) if surplus else 0
        return period + 2 + 2 * self._wanted.staleness

    def _snapshot(self, event: JobSnapshot) -> Iterator[str]:
        """It replaces all events so far, so it has the next new draw, the queue, and the open rounds."""
        draws = event.draws
        if not isinstance(draws, RoundsDrawn):
            yield "a snapshot has the draws of a job without rounds"
            return
        if draws.cursor != self._next:
            yield f"a snapshot has {draws.cursor} new draws, {self._next} were made"
        queue = [number for number, _ in draws.queue]
        if queue != self._queue:
            yield f"a snapshot has draws {queue} in the queue, there are {self._queue}"
        rounds = {one.batch: list(one.draws) for one in draws.rounds if not one.settled}
        opened = {batch: one.draws for batch, one in self._rounds.items() if not one.settled}
        if rounds != opened:
            yield f"a snapshot has open rounds {rounds}, there are {opened}"
        newest = (
            self._uniform[-MOST_SHORTS:] if self._wanted.drop_uniform and self._wanted.max_refills else []
        )
        if list(draws.uniform) != newest:
            yield f"a snapshot has {list(draws.uniform)} groups that counted and were dropped, {newest} were"

    # -- batches --

    def _submitted(self, event: BatchSubmitted, rounds: WantedRounds) -> Iterator[str]:
        one, wanted = self._rounds[event.batch], self._wanted
        one.submitted = len(event.prompts)
        short, step = one.kind == "short", step_of(event.batch) or 0
        surplus = short and rounds.samples > wanted.samples
        race = ("tokens" if rounds.by_tokens else "time") if short else ""
        selects = short or wanted.drop_uniform
        settings: dict[str, tuple[object, object]] = {
            "temperature": (event.temperature, wanted.temperature),
            "a limit": (event.max_new_tokens, wanted.max_new_tokens),
            "version": (event.version, step - 1),
            "a least version": (
                event.min_version,
                max(0, step - 1 - wanted.staleness) if wanted.staleness else None,
            ),
            "kind": (event.kind, one.kind if one.kind in ("short", "long") else ""),
            "race": (event.race, race),
            "counted groups": (event.wanted, wanted.prompts if selects else 0),
            "counted samples": (event.counted, wanted.samples if surplus else 0),
            "drop_uniform": (event.drop_uniform, wanted.drop_uniform if selects else False),
        }
        for what, (submitted, due) in settings.items():
            if submitted != due:
                yield f"{event.batch} was submitted with {what} {submitted}, the job's is {due}"
        yield from self._prompts(event.batch, 0, event.prompts, rounds)

    def _prompts(
        self, batch: str, first: int, prompts: Sequence[Prompt], rounds: WantedRounds
    ) -> Iterator[str]:
        one, wanted = self._rounds[batch], self._wanted
        samples = rounds.samples if one.kind == "short" else wanted.samples
        for group, prompt in enumerate(prompts, first):
            if group >= len(one.draws):
                yield f"group {group} of {batch} was submitted, and never drawn"
                continue
            number = one.draws[group]
            due = number % wanted.problems
            if (prompt.split, prompt.index) != ("train", due):
                yield (
                    f"group {group} of {batch} has problem {prompt.index} of {prompt.split}, draw {number} "
                    f"is problem {due}"
                )
            elif self._truth.prompt("train", due) != b"".join(
                token.to_bytes(4, "little") for token in prompt.tokens
            ):
                yield f"group {group} of {batch} has another prompt than problem {due}"
            place = f"{batch}/{group}"
            if rounds.own_seeds:
                place = f"step-{number // wanted.prompts + 1}/{number % wanted.prompts}"
            seeds = tuple(self._seed(place, sample) for sample in range(samples))
            if prompt.seeds != seeds:
                yield f"group {group} of {batch}, draw {number}, has seeds {prompt.seeds}, its are {seeds}"

    def _seed(self, place: str, sample: int) -> int:
        name = f"{self._wanted.seed}/{place}/{sample}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) // 2
