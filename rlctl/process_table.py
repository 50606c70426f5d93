"""Table of `rlctl ps`: a row for each actor and child process of a cluster.

Pure: process summaries go in.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gleaner.nodeagent.defaults import AGENT
from gleaner.rlctl.columns import Column, Styled, Table, fitted

if TYPE_CHECKING:  # their import takes longer than the whole command may
    from gleaner.nodeagent.cluster_view import Processes
    from gleaner.rlctl.control import ProcessSummaries
    from gleaner.supervisor.system_messages import ActorState, SystemState

SHOWN_CELLS = 60
_COLUMNS = (
    Column("NODE"),
    Column("PROCESS", spare=4),
    Column("ACTOR"),
    Column("INC", right=True, spare=6),
    Column("STATE"),
    Column("MAILBOX", right=True, spare=1),
    Column("RATE/s", right=True, spare=2),
    Column("HANDLED", right=True, spare=5),
    Column("DROPPED", right=True, spare=7),
    Column("RESTARTS", right=True, spare=3),
    Column("LAST FAILURE"),
)


def table(seen: "ProcessSummaries | Processes", width: int) -> Table:
    """The table, with as many columns as `width` cells hold."""
    return fitted(_COLUMNS, rows(seen), width)


def rows(seen: "ProcessSummaries | Processes") -> list[Sequence[str]]:
    """One row for each actor and child process."""
    suspects = {endpoint for state in seen.states for endpoint in state.suspects}
    shown = [
        row(state, actor, suspected=state.endpoint in suspects)
        for state in seen.states
        for actor in state.actors
    ]
    return shown + [silent_row(name) for name in seen.silent]


def row(state: "SystemState", actor: "ActorState", *, suspected: bool = False) -> Sequence[str]:
    """The cells of an actor or a child process; `suspected`: another process suspects that this one is
    dead."""
    process = bool(actor.pid)
    shown_state = "suspect" if suspected and not process and actor.state == "running" else actor.state
    return [
        state.node,
        state.process,
        actor.name if not process else f"{actor.name} (pid {actor.pid})",
        "-" if process else str(actor.incarnation),
        Styled(shown_state, "" if shown_state == "running" else "yellow"),
        "-" if process else mailbox(actor),
        "-" if process else f"{actor.rate:,.1f}",
        "-" if process else str(actor.handled),
        "-" if process else str(actor.dropped),
        str(actor.restarts),
        Styled(
            " ".join(actor.last_failure.split())[:SHOWN_CELLS] or "-",
            "red" if actor.last_failure else "",
        ),
    ]


def silent_row(name: str) -> Sequence[str]:
    """An expected actor or process that does not answer."""
    node = name.partition("/")[0] if name.endswith((f"/{AGENT}", ")")) else "?"  # unknown for other names
    return [node, "?", name, "?", Styled("no answer", "bold red"), *("?" * 5), "-"]


def mailbox(actor: "ActorState") -> Styled:
    """How full the mailbox is."""
    limit = actor.mailbox_limit
    text = f"{actor.mailbox}/{limit}" if limit else str(actor.mailbox)
    full = actor.mailbox / limit if limit else 0.0
    return Styled(text, "bold red" if full >= 0.9 else "yellow" if full >= 0.5 else "")
