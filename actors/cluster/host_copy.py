"""`HostCopies`: the trainer's state in two slots of shared memory.

Owns the two slots. A step's state is written into the one that does not hold the newest, and counts only once
it is sealed; so however the trainer dies, the newest whole state survives it. A state of the same step or a
later one, which another life left, is replaced. Only a checkpoint survives the host
(`checkpoint_store.CheckpointStore.adopt` copies a slot, and detects a change of it meanwhile).
"""

from collections.abc import Mapping
from pathlib import Path

from gleaner.actors.cluster import sealed_folder
from gleaner.actors.cluster.saved_state import Damaged, Note, SealedState
from gleaner.actors.cluster.sealed_folder import Contents


class HostCopies:
    """The `Copies` of a StateManager. One process writes at a time."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.slots = (self.directory / "slot-0", self.directory / "slot-1")

    def write(self, step: int, files: Contents, meta: Mapping[str, Note] | None = None) -> SealedState:
        """Write and seal the state after `step` steps. Raises `StateDirFull`; the newest state stays."""
        steps = {slot: _sealed_step(slot) for slot in self.slots}
        slot = slot_to_write(steps, step)
        sealed_folder.remove(slot)
        try:
            sealed = sealed_folder.write(slot, step, files, meta or {}, durable=False)
        except BaseException:
            sealed_folder.remove(slot)
            raise
        for other in [other for other in steps if other != slot and steps[other] >= step]:
            sealed_folder.remove(other)
        return sealed

    def newest(self) -> SealedState | None:
        """The newest state that verifies."""
        for slot in sorted(self.slots, key=_sealed_step, reverse=True):
            try:
                return sealed_folder.verify(slot)
            except Damaged:
                continue
        return None


def slot_to_write(steps: Mapping[Path, int], step: int) -> Path:
    """The slot for the state after `step`: one whose state the new one replaces, or else the older. `steps`:
    of the sealed state in each slot, -1 without one. Two states of one step would be a matter of chance."""
    replaced = [slot for slot, sealed in steps.items() if sealed >= step]
    return max(replaced, key=steps.__getitem__) if replaced else min(steps, key=steps.__getitem__)


def _sealed_step(slot: Path) -> int:
    """The step in a slot; -1 when nothing whole can be in it."""
    try:
        return sealed_folder.read_seal(slot).step
    except Damaged:
        return -1
