"""Outcome: a simulated run's end, history, disk contents and findings.

Owns their collection from the hosts after the run. Judges nothing: `gleaner.rlctl.simulated_evidence` makes
of it the evidence that every run is audited with, and chaos checks more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from gleaner.actors.cluster import job as places
from gleaner.actors.cluster.saved_state import Damaged
from gleaner.actors.protocol.cluster import JobSpec, TrainedSample
from gleaner.actors.training.records import AnyRecord
from gleaner.actors.training.work import Commit
from gleaner.configs.schema import Config
from gleaner.sim.file_mapping import FileMapping
from gleaner.sim.hosts import Host
from gleaner.sim.loop import Finding
from gleaner.sim.models.saved_memory import verify
from gleaner.sim.models.trainer_work import COMMIT_FILE
from gleaner.supervisor import JournalError
from gleaner.supervisor.journal.file import StreamContent, contents_of

Ended = Literal["done", "failed", "late", "stopped"]
"""How: the job ended well, or not; the virtual deadline passed; the user stopped it."""


@dataclass(frozen=True, slots=True)
class KeptStream:
    """A stream in the journal at `place` on the disk of `host`."""

    host: str
    place: str
    name: str
    content: StreamContent


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A durable checkpoint: its folder's name, the step and its samples, or the problem with it."""

    name: str
    step: int
    samples: tuple[TrainedSample, ...] = ()
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """See the module.

    Attributes:
        virtual_s: seconds of the cluster from its power on to the end of the job.
        wall_s: seconds that the simulation took.
        turns, notes: callbacks that ran, and facts in the trace; equal for equal histories.
        unreadable: journals that could not be replayed, in words.
        printed: virtual time, process, and its output on standard error.
        counts: how often each event happened: to disks ("disk: ..."), on the network ("net: ...").
    """

    seed: int
    config: Config
    job: JobSpec
    ended: Ended
    reason: str
    virtual_s: float
    wall_s: float
    trace_hash: str
    turns: int
    notes: int
    history: list[AnyRecord] = field(default_factory=list)
    streams: list[KeptStream] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    checkpoints: list[SavedStep] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    printed: list[tuple[float, str, str]] = field(default_factory=list)
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether the job reported that it is done, so that every step is due."""
        return self.ended == "done"


def kept_streams(hosts: Iterable[Host]) -> tuple[list[KeptStream], list[str]]:
    """Every stream on the disks of `hosts`, and what could not be read."""
    streams: list[KeptStream] = []
    unreadable: list[str] = []
    for host in hosts:
        for place in host.disk.places():
            view = host.disk.view(place)
            for name in view.names():
                try:
                    content = contents_of(view, [name])[name]
                except JournalError as problem:
                    unreadable.append(f"{host.name}: {problem}")
                else:
                    streams.append(KeptStream(host.name, place, name, content))
    return streams, unreadable


def saved_steps(hosts: Iterable[Host], job: JobSpec) -> Iterator[SavedStep]:
    """The checkpoints of a job on the disks of `hosts`, by step."""
    folder = places.checkpoint_dir(job)
    for host in hosts:
        files = FileMapping(host.disk.files, folder)
        for directory in sorted({path.parent for path in files if path.parent.parent == folder}):
            yield _saved_step(files, directory)


def _saved_step(files: FileMapping, directory: Path) -> SavedStep:
    number = directory.name.removeprefix("step-")
    step = int(number) if number.isdigit() else -1
    try:
        whole = verify(files, directory)
        commit = msgspec.msgpack.decode(files[directory / COMMIT_FILE], type=Commit)
    except (Damaged, KeyError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        return SavedStep(directory.name, step, damage=str(problem))
    return SavedStep(directory.name, whole.step, commit.samples)


def disk_counts(hosts: Iterable[Host]) -> Counter[str]:
    """Events of all disks together."""
    counts: Counter[str] = Counter()
    for host in hosts:
        counts.update({f"disk: {what}": count for what, count in host.disk.counts.items()})
    return counts
