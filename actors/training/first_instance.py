"""`FirstInstance`: whether a preemptible instance has served, or is late.

Pure: inputs are fleet samples, ends of engines and the time; the output is a verdict. The controller acts on
it.
"""

from typing import Literal

from gleaner.actors.training.causes import in_a_line
from gleaner.configs.schema import Fleet

MAX_CAUSE = 300
"""Characters of a cause in the report; a cause can be the last lines of a server."""

Verdict = Literal["", "served", "overdue"]


class FirstInstance:
    """See the module.

    Args:
        fleet: the job's settings.
        served: one has served already, in an earlier life of the controller.
    """

    def __init__(self, fleet: Fleet, *, served: bool = False) -> None:
        self._limit_s, self._expected = fleet.first_instance_s, fleet.n_prem_max > 0
        self._served, self._overdue = served, False
        self._since_s: float | None = None
        self._cause, self._ends = "", 0
        self.waited_s = 0.0
        """Since there were weights that an instance could serve."""

    @property
    def awaited(self) -> bool:
        """One may still join, and the job has not waited long enough."""
        return self._expected and not self._served and not self._overdue

    @property
    def missing(self) -> bool:
        """The job should have one and has had none so far."""
        return self._expected and not self._served

    def look(self, now_s: float, *, weights: bool, serves: bool) -> Verdict:
        """The news since the last call, each reported once. weights: there are some to serve; serves: an
        instance has served them.
        """
        if not self.missing or not weights:
            return ""
        if self._since_s is None:
            self._since_s = now_s
        self.waited_s = now_s - self._since_s
        if serves:
            self._served = True
            return "served"
        if self.waited_s >= self._limit_s and not self._overdue:
            self._overdue = True
            return "overdue"
        return ""

    def ended(self, name: str, cause: str) -> None:
        """An engine, or the process of one, ended, or a host cannot run one."""
        self._ends += 1
        self._cause = f"{name}: {in_a_line(cause, MAX_CAUSE)}"

    def why(self, hosts: int) -> str:
        """The known reason; hosts: preemptible ones that are up."""
        up = f"{hosts or 'no'} preemptible {'hosts are' if hosts > 1 else 'host is'} up"
        if self._ends:
            times = "once" if self._ends == 1 else f"{self._ends} times"
            return f"{up}, engines failed {times}, the last one {self._cause}"
        return f"{up}, and no engine has ended: look at its log (`rlctl logs`)" if hosts else up
