"""WidthTrial: the width of a host's engine, and what follows from a relaunch with another one.

Pure. A relaunch is on trial until its engine has run for the time that a server may take to start. An engine
that ends before that is launched once more; after the second end the host returns to the last width that
passed its trial (or was the first one), and refuses the other one for the rest of the job.
"""

from collections.abc import Sequence
from typing import Literal

from gleaner.actors.cluster.widths import fitting
from gleaner.nodeagent.launch import Launch

TRIES = 2

Verdict = Literal["waits", "again", "back", "passed"]


class WidthTrial:
    """See the module.

    Args:
        widths: that the job's settings allow.
        devices: of this host.
        wanted: the planned width when the engine starts for the first time.
        trial_s: an engine that has run for so long has passed.
    """

    def __init__(self, widths: Sequence[int], devices: int, wanted: int, trial_s: float) -> None:
        self._widths, self._devices, self._trial_s = list(widths), devices, trial_s
        self.width = self._good = fitting(self._widths, wanted or self._widths[0], devices)
        """The width that the engine has, or is launched with; 0 where none suits the host."""
        self._refused: set[int] = set()
        self._tries, self._begun_s = 0, 0.0

    @property
    def on_trial(self) -> bool:
        """Whether the engine may have to go back."""
        return self._tries > 0

    @property
    def launch(self) -> Launch:
        """How the engine is started now."""
        return Launch(self.width, self.on_trial)

    def ordered(self, wanted: int, now_s: float) -> bool:
        """A plan has this width: whether the engine is to be launched anew, as `launch` has it."""
        width = fitting(self._widths, wanted, self._devices) if wanted else self.width
        if width == self.width or width in self._refused:
            return False
        self.width, self._tries, self._begun_s = width, 1, now_s
        if width == self._good:
            self._tries = 0
        return True

    def look(self, *, runs: bool, now_s: float) -> Verdict:
        """What follows for the engine on trial, which runs or has ended."""
        if runs:
            if now_s - self._begun_s < self._trial_s:
                return "waits"
            self._good, self._tries = self.width, 0
            return "passed"
        if self._tries < TRIES:
            self._tries, self._begun_s = self._tries + 1, now_s
            return "again"
        self._refused.add(self.width)
        self.width, self._tries = self._good, 0
        return "back"
