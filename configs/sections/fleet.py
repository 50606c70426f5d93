"""Settings of hosts: their number, their prices, how soon a silence is noticed."""

from typing import Annotated

from msgspec import Meta

from gleaner.configs.sections.values import HostPath, Natural, NotNegative, Positive, Section


class Fleet(Section, frozen=True, kw_only=True):
    """The hosts: their number, and when they are added and removed."""

    reserved: Annotated[int, Meta(ge=1, le=1)] = 1
    """Hosts that stay. One: all processes of the trainer run on it."""
    n_prem_max: Natural = 3
    """Most preemptible hosts at a time, whatever Algorithm 1 requests; three engines fill two cores."""
    trace: HostPath = ""
    """When preemptible hosts are added and removed (CSV, see `gleaner.configs.trace`); "" = `n_prem_max` of
    them, always."""
    notice_s: NotNegative = 10.0
    """Time from a notice to the removal where the trace gives no removal; clouds give 30 to 120 s."""
    first_instance_s: Positive = 300.0
    """Time from the first version of the weights until a preemptible instance serves one; after it the job
    reports that none has, and why. A server of a large model starts in minutes; hosts are paid for meanwhile.
    """
    await_instance: bool = False
    """The first step waits until a preemptible instance serves, for `first_instance_s` at most; the clock of
    the trace begins after that. Off: the reserved host begins alone, without delay."""
    require_instance: bool = False
    """A job fails if no preemptible instance has served within `first_instance_s`, or by its end (`rlctl run`
    ends with exit code 4). Off: it trains on its reserved host alone, and reports that."""
    restarts: Natural = 5
    """Restarts of one supervised process within `restarts_within_s` before its supervisor gives up."""
    restarts_within_s: Positive = 60.0
    """Window of the restart intensity."""


class Liveness(Section, frozen=True, kw_only=True):
    """How soon a silence is noticed, and so what an idle cluster costs. All periodic messages that only show
    or find out which processes live follow from these two.

    A killed process is known at once whatever they are, by its closed or refused connection; a host without
    power, or behind a cut, after 3 to 5 s, by the pings of its connections. These settings are for what none
    of that shows: a process that is stalled, and lost messages about hosts and instances.
    """

    beat_s: Positive = 0.5
    """A watched process that was silent for so long is probed; the report samples the fleet at the same
    interval."""
    dead_s: Positive = 5.0
    """Silence after which a peer is dead for certain and its work goes elsewhere; never before 60 % of it,
    and in between when its silence is unlikely, given its earlier beats."""

    hung_silences: NotNegative = 2.0
    """A child process without a heartbeat over its control link for so many times `dead_s` is killed; for its
    supervisor that is an end like any other. At 2 no process counts on it any more: its peers gave it up
    after one, and its names lapse after two. 0: only an exit is seen, as a debugger needs it."""
    start_s: Positive = 120.0
    """The same limit for a process that has not given its first heartbeat yet (it imports, from a cold disk)
    or that uses the processor meanwhile (its loop is held up by work, or starved by other processes)."""

    work_s: Positive = 300.0
    """A piece of work of the trainer (a micro-batch, an update, an image) or of the builtin engine (a turn)
    that takes so long, and ten times as long as the longest of its kind so far, has hung: its process ends
    with that cause and is started again. Far above the differences of healthy pieces. Servers:
    `engine.stall_s`."""
    first_work_s: Positive = 1800.0
    """The same for the first piece of a kind: it may load a model from a slow disk, or compile."""

    @property
    def hello_s(self) -> float:
        """Between two hellos of a host to the Scheduler: five fit into the silence that counts as its
        death. News for hosts do not wait for them: a new job calls them."""
        return self.dead_s / 5

    @property
    def check_s(self) -> float:
        """Between two queries of an instance whether the manager still counts on it: a message lost between
        the two is made good within half of the time that a death may take to be seen."""
        return self.dead_s / 2

    @property
    def lease_s(self) -> float:
        """A process that sends nothing to the registry for so long loses its names; it renews them at a
        third. The slowest of all limits: peers notice a death earlier, by connection or silence, and a
        successor takes a name at once."""
        return self.dead_s * 2

    @property
    def hung_s(self) -> float:
        """Seconds without a heartbeat that end a child process; 0: they never do."""
        return self.dead_s * self.hung_silences

    @property
    def successor_s(self) -> float:
        """The job waits so long for an answer of a process that may have to be replaced; then it fails, and
        can be resumed. It is above every silence that ends a process, so that no other process fails first: a
        process that hangs in its start, and the start of the next one."""
        return max(self.start_s, self.hung_s) + 60.0

    def __post_init__(self) -> None:
        if self.beat_s >= self.dead_s:
            raise ValueError(f"dead_s: expected more than beat_s ({self.beat_s:g}), got {self.dead_s:g}")
        if 0 < self.hung_silences < 1:
            raise ValueError(
                f"hung_silences: expected 0, or at least 1, got {self.hung_silences:g}: a process that its "
                "peers count on is not killed"
            )


class Prices(Section, frozen=True, kw_only=True):
    """Prices of hosts an hour; only the report uses them."""

    reserved_per_hour: NotNegative = 4.0
    """One reserved host, currency an hour; the order of an H100 on demand."""
    preemptible_per_hour: NotNegative = 1.2
    """One preemptible host; spot markets ask about 30 % of the price on demand."""
    currency: Annotated[str, Meta(min_length=1, max_length=8)] = "USD"
    """Shown beside the numbers."""
