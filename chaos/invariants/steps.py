"""I5 and I6: each step is done once from the same samples; served is published.

Served bytes equal published bytes. Owns the journals' records of steps and the versions' bytes.
"""

from collections.abc import Iterable, Iterator

from gleaner.actors.cluster.state_manager import Rewound
from gleaner.actors.protocol.cluster import StepTrained
from gleaner.actors.protocol.instances import Serving
from gleaner.actors.protocol.weights import Published
from gleaner.actors.training.job_journal import JobSnapshot, StepFinished
from gleaner.chaos.invariants.check import Check
from gleaner.chaos.invariants.facts import Committed, Fact, MessagePassed, RecordWritten, RunEnd, ServedImage
from gleaner.chaos.invariants.samples import audited
from gleaner.rlctl.audit.invariants import Evidence

Made = tuple[tuple[str, int, int], ...]
MicroBatches = tuple[tuple[int, ...], ...]


class EachStepOnce(Check):
    """I5."""

    fact_kinds = (Committed, RecordWritten)
    committed_kinds = (StepTrained, Rewound, StepFinished, JobSnapshot)
    name = "I5"
    promise = "no step is skipped or done twice, and one done again gives the same bits"
    meaning = (
        "If this fails, the optimizer took a step that no batch asked for, or left one out, or a step "
        "that was "
        "lost with its host came back with another result than the one that rollout had been given."
    )

    def __init__(self) -> None:
        self._last = 0
        self._made: dict[int, Made] = {}
        self._roots: dict[tuple[int, Made, bytes], bytes] = {}
        self._root: dict[int, bytes] = {}
        self._batches: dict[int, tuple[Made, MicroBatches]] = {}
        self._finished = 0
        self._most = 0  # the newest step that was ever on record at its reserved host

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, RecordWritten) and fact.newest < fact.step:
            yield (
                f"step {fact.step} was put on record while the newest whole state on {fact.host} was of step "
                f"{fact.newest}: with the trainer the step would die that is on record"
            )
        elif isinstance(fact, Committed):
            for message in fact.messages:
                if isinstance(message, StepTrained):
                    yield from self._trained(message)
                elif isinstance(message, Rewound):
                    if message.step > self._last:
                        yield f"training went back to step {message.step} from step {self._last}"
                    self._last = message.step
                elif isinstance(message, StepFinished):
                    if message.step != self._finished + 1:
                        yield f"step {message.step} was recorded after step {self._finished}"
                    if message.step > self._most:
                        yield f"step {message.step} is finished, and was never on record at its reserved host"
                    self._finished = message.step
                elif isinstance(message, JobSnapshot) and message.recorded != ((1, self._finished),):
                    yield f"a snapshot has steps {message.recorded}, the newest on record is {self._finished}"

    def end(self, evidence: Evidence, ending: RunEnd) -> Iterable[str]:
        return audited(self.name, evidence, ending)

    def _trained(self, event: StepTrained) -> Iterator[str]:
        if event.step != self._last + 1:
            yield f"step {event.step} was trained after step {self._last}"
        self._last = event.step
        self._most = max(event.step, self._most)
        made = tuple(sorted((sample.request, sample.count, sample.crc) for sample in event.samples))
        if self._made.setdefault(event.step, made) != made:
            yield f"step {event.step} was done again from other samples"
        # floating-point sums depend on their order, which the modelled trainer does not show
        before = self._batches.setdefault(event.step, (made, event.micro_batches))
        if before[0] == made and before[1] != event.micro_batches:
            yield f"step {event.step} was done again from the same samples in other micro-batches than before"
        # the same samples on the same weights give the same bits only in the same training order
        base = self._root.get(event.step - 1, b"")
        how = (event.step, made, base)
        if base and self._roots.setdefault(how, event.root) != event.root:
            yield f"step {event.step} was done again from the same samples and gave other weights"
        self._root[event.step] = event.root


class ServedIsPublished(Check):
    """I6."""

    fact_kinds, message_kinds = (ServedImage, MessagePassed), (Published, Serving)
    name = "I6"
    promise = "weights served are bit-identical to weights published"
    meaning = (
        "If this fails, some instance generates with bytes that no trainer made: a chunk was damaged, "
        "mixed with "
        "another version's, or not there."
    )

    def __init__(self) -> None:
        self._published: dict[int, list[bytes]] = {}  # a version that was lost and done again has two roots

    def see(self, fact: Fact) -> Iterable[str]:
        if isinstance(fact, ServedImage):
            if fact.published is None:
                root = fact.root.hex()[:12]
                yield f"{fact.host} serves version {fact.version}, root {root}: that was not published"
            elif fact.published != fact.digest:
                yield (
                    f"{fact.host} serves version {fact.version} from bytes with digest "
                    f"{fact.digest.hex()[:12]}; "
                    f"published were {fact.published.hex()[:12]}"
                )
        elif isinstance(fact, MessagePassed):
            yield from self._observe(fact)

    def _observe(self, fact: MessagePassed) -> Iterator[str]:
        message = fact.message
        if isinstance(message, Published):
            roots = self._published.setdefault(message.version, [])
            if message.root not in roots:
                roots.append(message.root)
        elif isinstance(message, Serving) and message.root not in self._published.get(message.version, []):
            yield (
                f"{message.instance} reports that it serves version {message.version} with root "
                f"{message.root.hex()[:12]}, which was never published"
            )
