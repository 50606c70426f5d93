"""Boards of `rlctl top`: rates and shares between two polls, sorted and drawn.

Pure: process summaries go in, lines and tables come out. Owns no clock and no terminal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from gleaner.actors.names import REWARD, SCHEDULER
from gleaner.nodeagent.cluster_view import Processes
from gleaner.rlctl.columns import Column, Styled, fitted
from gleaner.rlctl.process_table import mailbox
from gleaner.rlctl.quantity_format import age, size
from gleaner.supervisor.system_messages import ActorState, SystemState

LAG_SLOW_S = 0.1  # a loop held up so long delays every caller of its actors
LAG_BAD_S = 1.0
KEYS = {"m": "mailbox", "r": "rate", "w": "waits", "f": "restarts", "n": "name"}
"""Keys of the live view, and what they sort by."""


@dataclass(frozen=True, slots=True)
class ActorLine:
    """One actor now."""

    node: str
    process: str
    actor: ActorState
    rate: float


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """One process now. `cpu`: processor seconds per second since the previous poll; None on the first."""

    state: SystemState
    cpu: float | None
    rate: float


@dataclass(frozen=True, slots=True)
class Board:
    """One poll of a cluster."""

    actors: Sequence[ActorLine]
    processes: Sequence[ProcessLine]
    silent: Sequence[str] = ()

    @property
    def rate(self) -> float:
        """Messages handled per second by all actors."""
        return sum(line.rate for line in self.actors)


SORTS: Mapping[str, Callable[[ActorLine], tuple[float, str]]] = {
    "mailbox": lambda line: (-line.actor.mailbox, line.actor.name),
    "rate": lambda line: (-line.rate, line.actor.name),
    "waits": lambda line: (-line.actor.oldest_wait_s, line.actor.name),
    "restarts": lambda line: (-line.actor.restarts, line.actor.name),
    "name": lambda line: (0.0, line.actor.name),
}


@dataclass(slots=True)
class Meter:
    """Makes boards of successive polls; keeps one poll, so its size depends on the cluster alone."""

    _before: dict[tuple[str, str, int], SystemState] = field(default_factory=dict)

    def observe(self, seen: Processes) -> Board:
        """The board of a poll. On the first poll the rates are those that the processes measured
        themselves."""
        before, self._before = self._before, {_key(state): state for state in seen.states}
        actors: list[ActorLine] = []
        processes: list[ProcessLine] = []
        for state in seen.states:
            earlier = before.get(_key(state))
            lines = [
                ActorLine(state.node, state.process, actor, rate)
                for actor, rate in _rates(state, earlier)
                if not actor.pid
            ]
            actors += lines
            cpu = _cpu(state, earlier)
            processes.append(ProcessLine(state, cpu, sum(line.rate for line in lines)))
        return Board(actors, processes, seen.silent)


def _key(state: SystemState) -> tuple[str, str, int]:
    return state.node, state.process, state.pid


def _span_s(state: SystemState, earlier: SystemState | None) -> float:
    if earlier is None or earlier.vitals is None or state.vitals is None:
        return 0.0
    return state.vitals.now_s - earlier.vitals.now_s


def _rates(state: SystemState, earlier: SystemState | None) -> list[tuple[ActorState, float]]:
    span_s = _span_s(state, earlier)
    handled = {(it.name, it.incarnation): it.handled for it in earlier.actors} if earlier is not None else {}
    rates = []
    for actor in state.actors:
        before = handled.get((actor.name, actor.incarnation))
        known = before is not None and span_s > 0
        rates.append((actor, (actor.handled - (before or 0)) / span_s if known else actor.rate))
    return rates


def _cpu(state: SystemState, earlier: SystemState | None) -> float | None:
    span_s = _span_s(state, earlier)
    if span_s <= 0 or state.vitals is None or earlier is None or earlier.vitals is None:
        return None
    return max(state.vitals.cpu_s - earlier.vitals.cpu_s, 0.0) / span_s


_PROCESSES = (
    Column("NODE"),
    Column("PROCESS"),
    Column("PID", right=True, spare=4),
    Column("CPU", right=True, spare=1),
    Column("MEMORY", right=True, spare=3),
    Column("LAG", right=True),
    Column("ACTORS", right=True, spare=6),
    Column("RATE/s", right=True),
    Column("WAITS", right=True, spare=2),
    Column("OLDEST", right=True, spare=2),
    Column("DEAD LETTERS", right=True, spare=5),
)
_ACTORS = (
    Column("NODE", spare=5),
    Column("ACTOR"),
    Column("STATE", spare=4),
    Column("MAILBOX", right=True),
    Column("RATE/s", right=True),
    Column("HANDLED", right=True, spare=6),
    Column("DROPPED", right=True, spare=7),
    Column("WAITS", right=True, spare=2),
    Column("OLDEST", right=True, spare=3),
    Column("RESTARTS", right=True, spare=1),
    Column("LAST FAILURE", spare=8),
)

_TITLES = {
    "mailbox": "MAILBOX",
    "rate": "RATE/s",
    "waits": "OLDEST",
    "restarts": "RESTARTS",
    "name": "ACTOR",
}
MARK = "▾"


def render(board: Board, sort: str, width: int, height: int | None = None) -> RenderableType:
    """The view. height: lines of the terminal; None shows everything."""
    processes = sorted(board.processes, key=lambda line: (line.state.node != "head", line.state.node))
    actors = sorted(board.actors, key=SORTS[sort])
    rows = [_process_row(line) for line in processes]
    more_processes = more_actors = 0
    if height is not None:
        # heading, costs, plan, timeouts, silent ones, two headers, a gap, twice the rest
        room = max(height - 10, 2)
        shown = min(len(rows), max(room // 2, room - len(actors)))
        rows, more_processes = rows[:shown], len(rows) - shown
        keep = max(room - shown, 1)
        actors, more_actors = actors[:keep], max(len(actors) - keep, 0)
    parts: list[RenderableType] = [
        _heading(board),
        *_costs(board),
        *_plans(board),
        *_timeouts(board),
    ]
    if board.silent:
        names = ", ".join(board.silent)
        parts.append(Text(f"no answer from {names}", style="bold red", overflow="ellipsis", no_wrap=True))
    parts.append(fitted(_PROCESSES, rows, width))
    if more_processes:
        parts.append(Text(f"… {more_processes} more processes", style="dim"))
    parts += [Text(""), fitted(_sorted_by(sort), [_actor_row(line) for line in actors], width)]
    if more_actors:
        parts.append(Text(f"… {more_actors} more actors", style="dim"))
    return Group(*parts)


def _plans(board: Board) -> Sequence[Text]:
    """The Scheduler's plan for the next step, beside the duration of the last one."""
    for line in board.actors:
        figures = line.actor.figures
        if line.actor.name == SCHEDULER and figures.get("state") == "running":
            facts = [f"T_seed {figures.get('t_seed_s')} s", f"N_prem {figures.get('n_prem')}"]
            facts += [f"last step {took} s" for took in (figures.get("measured_s"),) if took]
            facts += [
                f"next step predicted {seconds} s" for seconds in (figures.get("predicted_s"),) if seconds
            ]
            return [Text("   ".join(facts), overflow="ellipsis", no_wrap=True)]
    return []


def _timeouts(board: Board) -> Sequence[Text]:
    """Programs that adaptive timeouts ended, where a job has them."""
    for line in board.actors:
        figures = line.actor.figures
        if line.actor.name == REWARD and "anchors" in figures:
            right, audited = figures.get("timeout_would_have_passed"), figures.get("timeouts_audited")
            facts = [
                f"timeouts: {figures.get('timeouts_cut')} programs cut",
                f"{right} of {audited} audited right",
                f"{figures.get('anchors')} tests with an anchor",
            ]
            return [Text("   ".join(facts), overflow="ellipsis", no_wrap=True)]
    return []


def _sorted_by(sort: str) -> Sequence[Column]:
    """The columns of actors; the sort column is marked and never left out."""
    title = _TITLES[sort]
    return [Column(f"{title}{MARK}", column.right) if column.name == title else column for column in _ACTORS]


def _heading(board: Board) -> Text:
    vitals = [line.state.vitals for line in board.processes if line.state.vitals is not None]
    waits = sum(it.waits for it in vitals)
    oldest_s = max((it.oldest_wait_s for it in vitals), default=0.0)
    dead = sum(sum(line.state.dead_letters.values()) for line in board.processes)
    refused = sum(sum(line.state.refused.values()) for line in board.processes)
    facts = [
        f"{len({line.state.node for line in board.processes})} hosts",
        f"{len(board.processes)} processes",
        f"{len(board.actors)} actors",
        f"{board.rate:,.0f} messages/s",
        f"{waits} waits" + (f" (oldest {age(oldest_s)})" if waits else ""),
        f"{dead:,} dead letters",
        f"{refused:,} refused",
    ]
    return Text("   ".join(facts), style="bold", overflow="ellipsis", no_wrap=True)


def _costs(board: Board) -> list[Text]:
    """Cost of a job on this cluster so far, as its controller reports it."""
    lines = []
    for line in board.actors:
        figures = line.actor.figures
        cost, currency = figures.get("cost"), figures.get("currency", "")
        if not isinstance(cost, int | float):
            continue
        facts = [f"job step {figures.get('step', '?')}", f"{cost:,.4f} {currency}"]
        for name, words in _COSTS.items():
            value = figures.get(name)
            if isinstance(value, int | float):
                facts.append(f"{value:,.4f} {words}" if isinstance(value, float) else f"{value:,} {words}")
        lines.append(Text("   ".join(facts), overflow="ellipsis", no_wrap=True))
    return lines


_COSTS = {
    "cost_per_step": "a step",
    "cost_per_million_tokens": "a million trained tokens",
    "tokens_wasted": "tokens wasted",
}


def _process_row(line: ProcessLine) -> Sequence[str]:
    state, vitals = line.state, line.state.vitals
    if vitals is None:
        return [state.node, state.process, str(state.pid), *("?" * 8)]
    style = "bold red" if vitals.lag_s >= LAG_BAD_S else "yellow" if vitals.lag_s >= LAG_SLOW_S else ""
    dead = sum(state.dead_letters.values())
    return [
        state.node,
        state.process,
        str(state.pid),
        "-" if line.cpu is None else f"{line.cpu:.0%}",
        size(vitals.rss_bytes) if vitals.rss_bytes else "-",
        Styled(f"{vitals.lag_s * 1000:.0f} ms", style),
        str(sum(1 for actor in state.actors if not actor.pid) + state.left_out),
        f"{line.rate:,.1f}",
        str(vitals.waits),
        age(vitals.oldest_wait_s) if vitals.waits else "-",
        Styled(f"{dead:,}", "yellow" if dead else ""),
    ]


def _actor_row(line: ActorLine) -> Sequence[str]:
    actor = line.actor
    return [
        line.node,
        actor.name,
        Styled(actor.state, "" if actor.state == "running" else "yellow"),
        mailbox(actor),
        f"{line.rate:,.1f}",
        f"{actor.handled:,}",
        Styled(f"{actor.dropped:,}", "yellow" if actor.dropped else ""),
        str(actor.waits or "-"),
        age(actor.oldest_wait_s) if actor.waits else "-",
        Styled(str(actor.restarts), "red" if actor.restarts else ""),
        Styled(" ".join(actor.last_failure.split()) or "-", "red" if actor.last_failure else ""),
    ]
