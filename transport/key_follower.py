"""KeyFollower: applies key directory changes to the AllowList, without restart.

Owns the poll of `trusted/` twice a second and the handling of an unreadable file. It polls: inotify misses
changes on network file systems, and a look at ten names costs 40 us. `gate` and the sockets cut the
connections that a change affects.
"""

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from gleaner.transport.keys import TRUSTED, BadKeys, NodeKeys, fingerprint, read_key, read_trusted

POLL_S = 0.5  # a change holds within a second, also on a busy loop
# files whose contents are watched; if there are more, a file overwritten in place is noticed later
FILES_A_LOOK = 64

log = logging.getLogger("transport")

_Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class KeyState:
    """State of a process's key list. `reloads`: how often the list changed since the start; `reloaded_s`:
    when it last did, in seconds of the loop's clock; `problem`: why the newest files are not in force, "" if
    they are."""

    directory: str
    fingerprint: str
    trusted: int
    reloads: int
    reloaded_s: float
    problem: str


class KeyFollower:
    """Follows `directory` into `keys.allowed`, on the running loop, until `close`.

    A list with a damaged, half-written or missing part is never used: the last good list stays in force, and
    each new problem is logged once.
    """

    def __init__(self, keys: NodeKeys, directory: Path | str, *, poll_s: float = POLL_S) -> None:
        self._keys = keys
        self._root = Path(directory)
        self._poll_s = poll_s
        self._loop = asyncio.get_running_loop()
        self._seen: _Signature = ()
        self._settled = False
        self._idle_looks = 0  # since the last look at all files
        self._reloads = 0
        self._reloaded_s = self._loop.time()
        self._problem = ""
        self._timer: asyncio.TimerHandle = self._loop.call_soon(self._tick)  # type: ignore[assignment]

    def state(self) -> KeyState:
        """The list in force, and the problem with newer files."""
        keys = self._keys
        return KeyState(
            directory=str(self._root),
            fingerprint=fingerprint(keys.public),
            trusted=len(keys.allowed.admitted) - 1,
            reloads=self._reloads,
            reloaded_s=self._reloaded_s,
            problem=self._problem,
        )

    def close(self) -> None:
        """Follow no more; the list stays as it is."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._poll_s, self._tick)
        try:
            signature = self._folders()
            if signature == self._seen[:2] and self._settled and self._idle_looks < self._spare_looks:
                self._idle_looks += 1
                return
            self._idle_looks = 0
            signature += self._files()
        except OSError as error:
            self._settled = False
            self._tell(f"{error.filename or self._root}: {error.strerror}; the last good list stays in force")
            return
        if signature == self._seen and self._settled:
            return
        # A file written within one tick of the kernel's clock has the same signature: read once more.
        self._settled = signature == self._seen
        self._seen = signature
        self._reload()

    @property
    def _spare_looks(self) -> int:
        """How many looks at the folder alone precede a look at all files. A look at the folder sees added and
        removed names."""
        return len(self._seen) // FILES_A_LOOK

    def _folders(self) -> _Signature:
        return _signed("", (self._root / "node.public").stat()), _signed("", (self._root / TRUSTED).stat())

    def _files(self) -> _Signature:
        with os.scandir(self._root / TRUSTED) as entries:
            return tuple(
                sorted(
                    _signed(entry.name, entry.stat()) for entry in entries if entry.name.endswith(".public")
                )
            )

    def _reload(self) -> None:
        try:
            trusted = frozenset(read_trusted(self._root).values())
            public = read_key(self._root / "node.public")
        except BadKeys as problem:
            self._tell(f"{problem}; the last good list stays in force")
            return
        before = self._keys.allowed.admitted
        admitted = trusted | {self._keys.public}
        if admitted != before:
            self._reloads += 1
            self._reloaded_s = self._loop.time()
            log.info("%s: %d keys are trusted now, %d before", self._root, len(admitted) - 1, len(before) - 1)
            self._keys.allowed.replace(admitted)
        if public != self._keys.public:
            self._tell(
                f"{self._root / 'node.public'} is not the key that this process runs with "
                f"({fingerprint(self._keys.public)}): restart the node agent to use it"
            )
        elif self._problem:
            log.info("key directory readable again: %s", self._root)
            self._problem = ""

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            log.warning("keys: %s", problem)


def _signed(name: str, about: os.stat_result) -> tuple[str, int, int, int]:
    return name, about.st_ino, about.st_ctime_ns, about.st_size
