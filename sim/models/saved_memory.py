"""Trainer's saved state on mappings: host copies in memory, checkpoints on disk.

Owns the ports of `gleaner.actors.cluster.saved_state` for simulated hosts. The seal is production's own
(`gleaner.actors.cluster.sealed_folder.Seal`): sizes and digests of every file, so damage is found where it
would be found. A copy or checkpoint appears whole, when the time of writing it is over; a kill before that
leaves the earlier one.

Left out: the half-written directory that production removes at its next write.
"""

import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path

import msgspec
import xxhash

from gleaner.actors.cluster.host_copy import slot_to_write
from gleaner.actors.cluster.saved_state import Damaged, FileInfo, Latest, SealedState, StateDirFull
from gleaner.actors.cluster.sealed_folder import SEAL, Seal, require_sealed
from gleaner.sim.models.clock import Clock

Files = MutableMapping[Path, bytes]
_STEP = re.compile(r"step-(\d{6,})")


def sealed_files(
    directory: Path, step: int, contents: Mapping[str, bytes]
) -> tuple[SealedState, dict[Path, bytes]]:
    """Content of a sealed directory: the files by path, the seal among them."""
    infos = {name: _info(content) for name, content in sorted(contents.items())}
    seal = Seal(step=step, files=infos, meta={})
    seal = msgspec.structs.replace(seal, digest=seal.expected_digest())
    files = {directory / name: content for name, content in contents.items()}
    files[directory / SEAL] = msgspec.json.encode(seal)
    return SealedState(step, directory, seal.meta, infos), files


def verify(files: Mapping[Path, bytes], directory: Path) -> SealedState:
    """Read everything of a directory and compare. Raises `Damaged`."""
    try:
        seal = msgspec.json.decode(files[directory / SEAL], type=Seal)
    except KeyError:
        raise Damaged(f"{directory} has no {SEAL}: it was never finished") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"{directory / SEAL} cannot be read: {error}") from error
    if seal.digest != seal.expected_digest():
        raise Damaged(f"{directory / SEAL} does not match its own digest")
    for name, info in seal.files.items():
        content = files.get(directory / name)
        require_sealed(directory / name, None if content is None else _info(content), info)
    return SealedState(seal.step, directory, seal.meta, seal.files)


def remove(files: Files, directory: Path) -> None:
    """Take a directory away, its seal first."""
    files.pop(directory / SEAL, None)
    for path in [path for path in files if path.parent == directory]:
        del files[path]


class SimCopies:
    """Two slots in the host's memory, written in turn, as `gleaner.actors.cluster.host_copy` has them.

    Args:
        memory: the host's; it goes with it.
        directory: where the slots are.
        clock: of the process that writes.
    """

    def __init__(self, memory: Files, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self.slots = (directory / "slot-0", directory / "slot-1")
        self._memory, self._clock = memory, clock

    def write(self, step: int, contents: Mapping[str, bytes]) -> None:
        """The state after `step` steps, when the work of the moment is over; the newest stays until then."""
        steps = {slot: self._step(slot) for slot in self.slots}
        slot = slot_to_write(steps, step)
        files = sealed_files(slot, step, contents)[1]

        def put() -> None:
            remove(self._memory, slot)
            self._memory.update(files)
            for other in [other for other in steps if other != slot and steps[other] >= step]:
                remove(self._memory, other)

        self._clock.then(put)

    def newest(self) -> SealedState | None:
        """See `Copies`."""
        for slot in sorted(self.slots, key=self._step, reverse=True):
            try:
                return verify(self._memory, slot)
            except Damaged:
                continue
        return None

    def _step(self, slot: Path) -> int:
        """The step in a slot; -1 when nothing whole can be in it."""
        try:
            return verify(self._memory, slot).step
        except Damaged:
            return -1


class SimCheckpoints:
    """Checkpoints among a host's durable files, as `gleaner.actors.cluster.checkpoint_store` keeps them.

    Args:
        durable: files that survive the host.
        memory: the host's, where the copies lie that are adopted.
        directory: where the checkpoints are.
        keep: how many stay.
        clock: of the process that writes.
        write_s: seconds that one of them takes.
    """

    def __init__(
        self, durable: Files, memory: Files, directory: Path, keep: int, clock: Clock, write_s: float
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; the last checkpoint must stay")
        self._directory, self.keep = directory, keep
        self._durable, self._memory = durable, memory
        self._clock, self._write_s = clock, write_s

    @property
    def directory(self) -> Path:
        """See `Checkpoints`."""
        return self._directory

    def path(self, step: int) -> Path:
        """See `Checkpoints`."""
        return self._directory / f"step-{step:06d}"

    def steps(self) -> list[int]:
        """See `Checkpoints`."""
        mine = {path.parent.name for path in self._durable if path.parent.parent == self._directory}
        found = (_STEP.fullmatch(name) for name in mine)
        return sorted(int(match[1]) for match in found if match)

    def latest(self) -> Latest:
        """See `Checkpoints`."""
        skipped: list[str] = []
        for step in reversed(self.steps()):
            try:
                return Latest(self._load(step), tuple(skipped))
            except Damaged as damage:
                skipped.append(str(damage))
        return Latest(None, tuple(skipped))

    def adopt(self, source: SealedState) -> SealedState:
        """See `Checkpoints`. A whole checkpoint of this step stays as it is. A disk without space is noticed
        when the checkpoint is written, with StateDirFull."""
        try:
            return self._load(source.step)
        except Damaged:
            pass
        if verify(self._memory, source.path).files != source.files:
            raise Damaged(f"{source.path} was replaced while it was to be copied")
        contents = {name: self._memory[source.path / name] for name in source.files}
        sealed, files = sealed_files(self.path(source.step), source.step, contents)

        def put() -> None:
            remove(self._durable, sealed.path)
            try:
                self._durable.update(files)
            except OSError as full:
                remove(self._durable, sealed.path)
                raise StateDirFull(self._directory, sum(map(len, files.values())), 0) from full
            for old in self.steps()[: -self.keep]:
                remove(self._durable, self.path(old))

        self._clock.spend(self._write_s)
        self._clock.then(put)
        return sealed

    def _load(self, step: int) -> SealedState:
        found = verify(self._durable, self.path(step))
        if found.step != step:
            raise Damaged(f"{found.path} holds the state after step {found.step}: it was renamed")
        return found


def _info(content: bytes) -> FileInfo:
    return FileInfo(len(content), xxhash.xxh3_128_hexdigest(content))
