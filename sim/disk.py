"""SimDisk: disk of one simulated host; it survives the processes and the host.

Owns the durability of a write. A committed write is kept whatever dies after it. A write that a kill cut off
happened, or did not, or is there by half; the next process that opens the journal drops that half, as
SQLite's recovery does with the tail of its log. A full disk refuses and has lost nothing. The duration of a
write, and the fate of one that is cut off, are drawn from the seed. A power loss
(`lose_power`) takes back what was acknowledged, except what a journal had forced out.
"""

from __future__ import annotations

import errno
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

from gleaner.sim.files import SimFiles, SimMemory
from gleaner.sim.journal import SimJournal
from gleaner.sim.kept_streams import KeptStreams
from gleaner.sim.loop import SimLoop
from gleaner.sim.process_loop import ProcessLoop
from gleaner.sim.slowness import Slowness
from gleaner.sim.unsure_writes import UnsureWrites
from gleaner.supervisor.errors import JournalDamaged, JournalError, JournalFull
from gleaner.supervisor.journal.group_commit import Committed, Write

__all__ = ["SimDisk", "SimFiles", "SimJournal", "SimMemory"]

SYNC_S = 0.0004
"""A commit of a group to a local disk, without waiting for its platters: a write into the page cache and its
bookkeeping; the mean of an exponential."""
STALL_PROBABILITY = 0.002
STALL_S = (0.02, 0.2)
"""Now and then a commit waits for the disk to write back: tenths of a second, as on a busy cloud volume."""
FORCE_S = 0.001
"""A commit that is forced out (`fsync`) takes so much longer on an SSD; the mean of an exponential."""
LOOK_S = 0.0002  # a claim or a read

FATES = ("kept", "torn", "lost")


class SimDisk:
    """See the module.

    Args:
        loop: whose time it uses.
        rng: its own stream of randomness, from the seed and the host's name.
        host: for messages.
    """

    def __init__(self, loop: SimLoop, rng: random.Random, host: str) -> None:
        self.loop = loop
        self.host = host
        self.counts: Counter[str] = Counter()
        """Events of the disk: "cut off: kept", "cut off: torn", "cut off: lost", "tail repaired", "refused:
        full", "replayed"."""
        self.files = SimFiles(self._check_space)
        """Checkpoints and the like; a full disk refuses them with ENOSPC."""
        self.on_commit: Callable[[Write], None] | None = None
        """Called for each write at the moment from which it is stored, whatever happens to its writer."""
        self.slowness = Slowness(lambda: loop.now_s)
        """Of everything."""
        self._rate_bytes_s = math.inf  # of its writes, while it is slow
        self._stalled_until_s = 0.0
        self._rng = rng
        self._full = False
        self._low = False
        self._journals: dict[str, KeptStreams] = {}
        self.lost_commits = False
        """Whether a power loss took back what was committed."""
        self._tracks = False
        self._unsure: dict[str, UnsureWrites] = {}
        self._ambushes: dict[ProcessLoop, tuple[Callable[[], None], str]] = {}

    # -- for production code --

    def journal(self, place: str, process: ProcessLoop, *, commit_s: float) -> SimJournal:
        """Open the journal at `place` for `process`, made if there is none. Raises JournalFull."""
        kept = self._journals.get(place)
        if kept is None:
            if self._full:
                raise JournalFull(self._why_full(place))
            kept = self._journals[place] = KeptStreams(
                place, lambda: self._why_full(place), lambda: self._why_low(place)
            )
            if self._tracks:
                self._unsure[place] = UnsureWrites(kept, lambda: self.loop.now_s)
        if kept.refusal:
            raise JournalDamaged(kept.refusal)
        if kept.torn:
            kept.torn = False
            self._count("tail repaired", place)
        return SimJournal(self, kept, process, commit_s)

    def places(self, folder: str = "") -> list[str]:
        """The journals below `folder`, by name."""
        return sorted(place for place in self._journals if place.startswith(folder))

    def delete_journal(self, place: str) -> None:
        """Delete the journal; no error if there is none."""
        self._journals.pop(place, None)
        self._unsure.pop(place, None)

    def view(self, place: str) -> KeptStreams:
        """A journal as it is now, for inspection from outside. Raises JournalError where there is none."""
        kept = self._journals.get(place)
        if kept is None:
            raise JournalError(f"{place}: no such journal on the disk of {self.host}")
        return kept

    # -- for faults --

    @property
    def full(self) -> bool:
        """Whether nothing can be written."""
        return self._full

    def fill(self) -> None:
        """No space is left: every write is refused until `make_room`."""
        self.loop.trace.note("disk full", self.host)
        self._full = True

    def run_low(self) -> None:
        """Little space is left: writes are taken, new work should not be begun."""
        self.loop.trace.note("disk low", self.host)
        self._low = True

    def make_room(self) -> None:
        """There is space again."""
        self.loop.trace.note("disk has room", self.host)
        self._full = self._low = False

    def slow(self, factor: float, for_s: float = math.inf, *, bytes_per_s: float = math.inf) -> None:
        """Let everything take `factor` times as long, and write no faster than `bytes_per_s`, for so long."""
        if factor < 1:
            raise ValueError(f"a disk can be slowed by 1 and more, not {factor}")
        self.loop.trace.note("disk slow", self.host, factor, bytes_per_s, for_s)
        self.slowness.begin(factor, for_s)
        self._rate_bytes_s = bytes_per_s

    def stall(self, for_s: float) -> None:
        """Do nothing for so long: what begins meanwhile is done afterwards."""
        self.loop.trace.note("disk stalls", self.host, for_s)
        self._stalled_until_s = self.loop.now_s + for_s

    def track_unsure(self) -> None:
        """From now on know which writes a power loss may take back."""
        self._tracks = True
        for place, kept in self._journals.items():
            self._unsure.setdefault(place, UnsureWrites(kept, lambda: self.loop.now_s))

    def lose_power(self, rng: random.Random, *, false_syncs: bool = False) -> None:
        """The host has no power: its journals are what production finds after that. Before it,
        `track_unsure`; the processes have ended. false_syncs: it only promised what it was
        forced to write."""
        for place, unsure in self._unsure.items():
            before = self._journals[place].all_rows()
            left = unsure.lose_power(rng, false_syncs=false_syncs)
            self.lost_commits |= left.streams != before
            what = "refused" if left.streams is None else "log truncated" if left.truncated else "recovered"
            self._count(f"power loss: {what}", place)

    def damage(self, place: str) -> str:
        """Flip a bit in the newest row of a journal, so that a replay must refuse it. Returns its stream, ""
        if nothing is written there yet. Raises JournalError where there is no such journal."""
        stream = self.view(place).damage()
        self.loop.trace.note("disk damages", self.host, place, stream)
        return stream

    def at_next_commit(self, process: ProcessLoop, call: Callable[[], None], fate: str = "") -> None:
        """Call this in the middle of the next commit of a process. Where the process dies of it, the write
        has this fate (`FATES`), or one that is drawn."""
        self._ambushes[process] = call, fate

    def wipe(self) -> None:
        """Another disk, an empty one."""
        self.loop.trace.note("disk wiped", self.host)
        self._journals.clear()
        self._unsure.clear()
        self.files.forget()
        self._full = self._low = False

    # -- for its journals --

    def sync_s(self, writes: Sequence[Write] = (), *, forced: bool = False) -> float:
        """Duration of the next commit, of these writes; forced: out to the platters."""
        seconds = self._rng.expovariate(1 / SYNC_S)
        if forced:
            seconds += self._rng.expovariate(1 / FORCE_S)
        if self._rng.random() < STALL_PROBABILITY:
            seconds += self._rng.uniform(*STALL_S)
        more_s = 0.0
        if self._rate_bytes_s < math.inf:
            more_s = sum(len(row.body) for write in writes for row in write.rows) / self._rate_bytes_s
        stalled_s = self._stalled_s()
        return stalled_s + self.slowness.takes_s(seconds, more_s=more_s, after_s=stalled_s)

    def _stalled_s(self) -> float:
        return max(0.0, self._stalled_until_s - self.loop.now_s)

    def begins(self, process: ProcessLoop, takes_s: float) -> None:
        """A commit of that process begins, and takes so long."""
        ambush = self._ambushes.get(process)
        if ambush is not None:
            self.loop.call_later(takes_s / 2, ambush[0])

    def look_s(self) -> float:
        """Duration of a claim or a read."""
        stalled_s = self._stalled_s()
        return stalled_s + self.slowness.takes_s(LOOK_S, after_s=stalled_s)

    def commit(self, kept: KeptStreams, writes: Sequence[Write]) -> list[Committed | Exception]:
        """They reach the disk, all or none. Raises JournalFull."""
        try:
            results = kept.commit(writes)
        except JournalFull:
            self._count("refused: full", kept.place)
            raise
        for write, result in zip(writes, results, strict=True):
            if isinstance(result, Committed):
                kinds = "snapshot" if write.is_snapshot else "events"
                self.loop.trace.note(
                    kinds, self.host, kept.place, write.stream, result.seq, *(row.body for row in write.rows)
                )
                if self.on_commit is not None:
                    self.on_commit(write)
            else:
                self._count("refused: fenced", f"{kept.place} {write.stream}")
        return results

    def forced_out(self, kept: KeptStreams) -> None:
        """Everything that was committed there is on the platters: no power loss takes it back."""
        unsure = self._unsure.get(kept.place)
        if unsure is not None:
            unsure.force_out()

    def cut_off(self, kept: KeptStreams, process: ProcessLoop, writes: Sequence[Write]) -> None:
        """The process that writes them has died meanwhile."""
        _, fate = self._ambushes.pop(process, (None, ""))
        fate = fate or self._rng.choice(FATES)
        self._count(f"cut off: {fate}", kept.place)
        if fate == "kept" and not self._full:
            self.commit(kept, writes)
        elif fate == "torn":
            kept.torn = True

    def replayed(self, kept: KeptStreams, stream: str) -> None:
        """An actor reads what an earlier one had written."""
        self._count("replayed", f"{kept.place} {stream}")

    def _count(self, what: str, where: str) -> None:
        self.counts[what] += 1
        self.loop.trace.note("disk", self.host, what, where)

    def _why_full(self, place: str) -> str:
        return f"{place}: no space is left on the disk of {self.host}: free some" if self._full else ""

    def _why_low(self, place: str) -> str:
        return f"{place}: little space is left on the disk of {self.host}: free some" if self._low else ""

    def _check_space(self, _bytes_more: int) -> None:
        if self._full:
            raise OSError(errno.ENOSPC, f"no space is left on the disk of {self.host}")
