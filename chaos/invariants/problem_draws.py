"""Problem draws: each problem of the training split in its turn, none twice in a step, none left out.

Owns the problems of the newest batches by the controller's journal, those that were given back, and the
comparison of what was submitted with them: problems, prompts, seeds and settings.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.batches import BatchSubmitted, Prompt
from gleaner.actors.rollout.state.events import GroupsAdded, GroupsDropped
from gleaner.actors.training.draw_events import Drawn, Redrawn, Returned
from gleaner.actors.training.draw_snapshots import ProblemsDrawn
from gleaner.actors.training.job_journal import JobSnapshot, StepFinished
from gleaner.chaos.invariants.check import Check, some
from gleaner.chaos.invariants.facts import Committed, Fact
from gleaner.chaos.invariants.truth import Truth
from gleaner.rlctl.audit.invariants import step_of

KEPT = 64
"""Batches whose draws are kept: many more than are open at a time."""


class DrawnInTurn(Check):
    """See the module."""

    fact_kinds = (Committed,)
    committed_kinds = (
        Drawn, Redrawn, Returned, GroupsDropped, BatchSubmitted, StepFinished, GroupsAdded, JobSnapshot,
    )  # fmt: skip
    name = "draws"
    promise = (
        "problems are drawn one after the other, those of aborted groups once more, and none twice for a "
        "step; a batch has the drawn problems, all of them, with their prompts, seeds and settings"
    )
    meaning = (
        "If this fails, some problems are trained on more often than others or never, or a step is sampled "
        "with other settings than the job's."
    )

    def __init__(self, truth: Truth) -> None:
        self._truth, self._wanted = truth, truth.wanted
        self._next = 0  # number of the next new problem, in the order of all draws
        self._back = Counter[int]()  # given back and not drawn again yet
        self._drawn: dict[str, list[int]] = {}
        self._surplus: dict[str, set[int]] = {}  # aborted groups
        self._settled: dict[str, set[int]] = {}  # groups whose problems were given back
        self._submitted: dict[str, int] = {}  # groups in the manager's journal

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, Committed):
            for message in fact.messages:
                yield from some(self._journaled(message, fact.stream))

    def _journaled(self, message: object, stream: str) -> Iterator[str]:
        match message:
            case Drawn():
                yield from self._draw(message)
            case Redrawn():
                yield from self._turns(message.batch, message.indices, message.returned)
                drawn = self._drawn.setdefault(message.batch, [])
                for group, index in zip(message.groups, message.indices, strict=True):
                    drawn[group] = index
            case Returned():
                yield from self._give_back(message)
            case GroupsDropped() if message.why == "surplus":
                self._surplus.setdefault(message.batch, set()).update(message.groups)
                self._forget(self._surplus)
            case BatchSubmitted() if stream == MANAGER and message.scored and self._judges(message.batch):
                if message.batch not in self._submitted:  # submitted again: the first one counts
                    self._submitted[message.batch] = len(message.prompts)
                    self._forget(self._submitted)
                    yield from self._batch(message)
            case StepFinished() if self._wanted.rounds is None:
                yield from self._finished(f"step-{message.step}")
            case JobSnapshot() if self._wanted.rounds is None:
                yield from self._snapshot(message)
            case GroupsAdded() if message.first == self._submitted.get(message.batch):
                self._submitted[message.batch] += len(message.prompts)
                yield from self._prompts(message.batch, message.first, message.prompts)

    def _judges(self, batch: str) -> bool:
        """Steps of a job with rounds have the check `rounds`."""
        return self._wanted.rounds is None or step_of(batch) is None

    @staticmethod
    def _forget(known: dict[str, set[int]] | dict[str, int] | dict[str, list[int]]) -> None:
        while len(known) > KEPT:
            del known[next(iter(known))]

    # -- draws --

    def _draw(self, event: Drawn) -> Iterator[str]:
        drawn = self._drawn.setdefault(event.batch, [])
        self._forget(self._drawn)
        if event.first != len(drawn):
            yield f"{event.batch} has {len(drawn)} problems, and more were drawn from group {event.first} on"
        again = {one for one, count in Counter([*drawn, *event.indices]).items() if count > 1}
        if again and len(drawn) + len(event.indices) <= self._wanted.problems:
            yield f"{event.batch} has problems {sorted(again)} more than once"
        yield from self._turns(event.batch, event.indices, event.returned)
        drawn.extend(event.indices)

    def _turns(self, batch: str, indices: Sequence[int], returned: int) -> Iterator[str]:
        """Those that were given back, then new ones in their order."""
        for index in indices[:returned]:
            if self._back[index] < 1:
                yield f"{batch} has problem {index} as one that was given back, and it was not"
            self._back[index] -= self._back[index] > 0
        waiting = sorted((+self._back).elements())
        if indices[returned:] and waiting:
            yield f"{batch} has new problems, and {waiting} were given back and wait"
        for index in indices[returned:]:
            due = self._next % self._wanted.problems
            if index != due:
                yield f"{batch} has problem {index}, the next one in turn is {due}"
            self._next = (self._next if index == due else index) + 1

    def _give_back(self, event: Returned) -> Iterator[str]:
        drawn = self._drawn.get(event.batch, [])
        late = range(self._submitted.get(event.batch, len(drawn)), len(drawn))
        unused = self._surplus.get(event.batch, set()) | set(late)
        due = [drawn[group] for group in sorted(unused) if group < len(drawn)]
        if sorted(event.indices) != sorted(due):
            yield (f"{event.batch} gave back problems {list(event.indices)}, aborted or unused were {due}")
        self._back.update(event.indices)
        self._settled[event.batch] = unused
        self._forget(self._settled)

    def _finished(self, batch: str) -> Iterator[str]:
        """A step is over: each of its problems was in its batch, and those of aborted groups are back."""
        drawn, settled = self._drawn.get(batch, []), self._settled.get(batch, set())
        late = range(self._submitted.get(batch, len(drawn)), len(drawn))
        if lost := [drawn[group] for group in late if group not in settled]:
            yield f"problems {lost} were drawn for {batch}, and never submitted"
        if surplus := self._surplus.get(batch, set()) - settled:
            yield f"{batch} is over, and the problems of its aborted groups {sorted(surplus)} are not back"

    def _snapshot(self, event: JobSnapshot) -> Iterator[str]:
        """It replaces all events so far, so it has the next new problem, and those that wait."""
        draws = event.draws
        if not isinstance(draws, ProblemsDrawn):
            yield "a snapshot has the draws of a job with rounds"
            return
        if draws.cursor != self._next:
            yield f"a snapshot has {draws.cursor} new problems, {self._next} were drawn"
        waiting = sorted((+self._back).elements())
        if sorted(draws.waiting) != waiting:
            yield f"a snapshot has problems {list(draws.waiting)} given back, {waiting} wait"

    # -- batches --

    def _batch(self, event: BatchSubmitted) -> Iterator[str]:
        wanted, step = self._wanted, step_of(event.batch)
        evaluates = step is None
        settings: dict[str, tuple[object, object]] = {
            "temperature": (
                event.temperature,
                wanted.eval_temperature if evaluates else wanted.temperature,
            ),
            "a limit": (event.max_new_tokens, wanted.max_new_tokens),
            "groups": (len(event.prompts), wanted.heldout if evaluates else wanted.launched),
            "sampling parameters": (event.sampling, None),
        }
        bounded = bool(step and wanted.staleness)
        version = self._evaluated(event.batch) if step is None else step - 1
        settings["a version"] = (event.version, version)
        settings["a least version"] = (
            event.min_version,
            max(0, version - wanted.staleness) if bounded else None,
        )
        for what, (submitted, due) in settings.items():
            if submitted != due:
                yield f"{event.batch} was submitted with {what} {submitted}, the job's is {due}"
        yield from self._prompts(event.batch, 0, event.prompts)

    def _evaluated(self, batch: str) -> int:
        """The version that an evaluation is of."""
        name = batch.removeprefix("eval-")
        return {"first": 0, "last": self._wanted.steps}.get(name) or step_of(name) or 0

    def _prompts(self, batch: str, first: int, prompts: Sequence[Prompt]) -> Iterator[str]:
        wanted, evaluates = self._wanted, step_of(batch) is None
        split, samples = ("heldout", 1) if evaluates else ("train", wanted.samples)
        drawn = list(range(wanted.heldout)) if evaluates else self._drawn.get(batch, [])
        for group, prompt in enumerate(prompts, first):
            due = drawn[group] if group < len(drawn) else None
            if (prompt.split, prompt.index) != (split, due):
                yield (
                    f"group {group} of {batch} has problem {prompt.index} of {prompt.split}, drawn was {due} "
                    f"of {split}"
                )
            elif self._truth.prompt(split, prompt.index) != _raw(prompt.tokens):
                yield f"group {group} of {batch} has another prompt than problem {prompt.index} of {split}"
            seeds = tuple(self._truth.seed(batch, group, sample) for sample in range(samples))
            if prompt.seeds != seeds:
                yield f"group {group} of {batch} has the seeds {prompt.seeds}, its own are {seeds}"


def _raw(tokens: Sequence[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)
