"""Evidence of a simulated run, read from the disks of the simulated cluster.

It has the form that every audit takes. Owns the translation from `gleaner.sim.outcome.Outcome`. Judges
nothing (`gleaner.rlctl.audit.invariants` does).
"""

from gleaner.rlctl.audit.invariants import CheckpointSeen, Evidence
from gleaner.rlctl.audit.journal_evidence import READ, StreamEvidence, evidence_of
from gleaner.sim.outcome import Outcome


def evidence(outcome: Outcome) -> Evidence:
    """The evidence of a simulated run, for `gleaner.rlctl.audit.invariants.audit`."""
    streams = StreamEvidence(missing=[("I2", text) for text in outcome.unreadable])
    for stream in outcome.streams:
        if stream.name in READ:
            streams.add(stream.name, stream.content)
    streams.miss("of the simulated hosts")
    checkpoints = [
        CheckpointSeen(name=one.name, step=one.step, samples=one.samples, damage=one.damage)
        for one in outcome.checkpoints
    ]
    return evidence_of(streams, outcome.config, complete=outcome.complete, checkpoints=checkpoints)
