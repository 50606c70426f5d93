"""`rlctl describe ACTOR`: all known facts about one actor."""

import argparse
import difflib
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gleaner.rlctl.client import Cluster
from gleaner.rlctl.columns import Column, fitted
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_deadline,
    add_json,
    chosen_cluster,
    console,
    deadline,
    print_json,
    run_async,
)
from gleaner.rlctl.errors import OK, CommandError, failed, nothing
from gleaner.rlctl.quantity_format import age, duration
from gleaner.supervisor import Address, AskFailed, Refused
from gleaner.supervisor.inspection.messages import ActorDescribed, Describe

_DESCRIPTION = """\
Show one actor: its class and message kinds, its process and start time, its mailbox, its counts of handled
and dropped messages, its restarts with causes, its supervisor, owner and watchers, its waits, and its own
figures.

ACTOR is a name as `rlctl ps` shows it."""

_EXAMPLES = """\
  rlctl describe rollout/manager
  rlctl describe spot-1/engine --json
  rlctl describe head/agent --head tcp://10.0.0.1:7700 --head-key head.public --keys keys/laptop"""

ATTEMPTS = 2  # its process may change between the two asks
NEAR = 4  # names that are suggested for an unknown one


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "describe",
        describe,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("actor", metavar="ACTOR", help="its name, such as rollout/manager")
    add_cluster(parser)
    add_deadline(parser)
    add_json(parser)


def describe(args: argparse.Namespace) -> int:
    """Run the command."""

    async def look() -> ActorDescribed:
        async with chosen_cluster(args) as cluster:
            return await find(cluster, args.actor, deadline(args))

    description = run_async(look())
    if args.json:
        print_json(description)
    else:
        out = console()
        out.print(render(description, out.width))
    return OK


async def find(cluster: Cluster, name: str, deadline_s: float) -> ActorDescribed:
    """Ask the process that hosts `name`. Raises CommandError where the actor does not exist, or where its
    process does not answer."""
    for _ in range(ATTEMPTS):
        addresses = await cluster.names()
        address = next((address for address in addresses if address.name == name), None)
        if address is None:
            raise unknown(name, addresses)
        try:
            return await cluster.ask_process(
                address.peer, Describe(name=name), expect=ActorDescribed, deadline_s=deadline_s
            )
        except Refused:
            continue
        except AskFailed as problem:
            raise failed(
                f"{name}: its process at {address.endpoint} does not answer: just gone, stopped, or stuck "
                f"({problem}); `rlctl ps` shows its host"
            ) from problem
    raise nothing(f"{name}: it ended just now; its supervisor may start it again, see `rlctl ps`")


def unknown(name: str, addresses: Iterable[Address]) -> CommandError:
    """The error for a name that no actor holds."""
    names = sorted(address.name for address in addresses)
    near = difflib.get_close_matches(name, names, NEAR, cutoff=0.5)
    near += [other for other in names if name in other and other not in near]
    hint = f"did you mean {', '.join(near[:NEAR])}?" if near else "`rlctl ps` lists all of them"
    return nothing(f"{name}: no actor of this name is registered now; {hint}")


def render(description: ActorDescribed, width: int) -> RenderableType:
    """The page."""
    parts: list[RenderableType] = [
        Text.assemble((description.name, "bold"), ("  " + description.purpose, "dim")),
        _facts(description),
    ]
    kinds = [it.kind if it.lane == "user" else f"{it.kind} ({it.lane})" for it in description.handlers]
    parts += _section("handles", kinds)
    if description.failure is not None:
        ago, failure = duration(description.now_s - description.failure.at_s), description.failure
        title = f"last failure ({ago} ago, of incarnation {failure.incarnation}, {failure.count} in all)"
        lines = [line if not n else f"caused by {line}" for n, line in enumerate(description.failure.chain)]
        parts += [Text(f"\n{title}", style="bold"), *(Text(f"  {line}", style="red") for line in lines)]
    if description.waits:
        columns = (Column("SINCE", right=True), Column("DEADLINE", right=True), Column("FOR"), Column("ON"))
        rows = [(age(wait.since_s), age(wait.left_s), wait.what, wait.on) for wait in description.waits]
        parts += [Text("\nwaits", style="bold"), fitted(columns, rows, width)]
    for title, names in (
        ("children", description.children),
        ("watches", description.watches),
        ("watched by", description.watched_by),
    ):
        parts += _section(title, names)
    if description.figures:
        parts.append(Text("\nfigures", style="bold"))
        parts.append(_grid([(name, str(value)) for name, value in description.figures.items()]))
    return Group(*parts)


def _facts(description: ActorDescribed) -> Table:
    lanes = "   ".join(f"{lane} {count}" for lane, count in description.waiting.items())
    supervised = f"{description.parent}   {description.strategy}".strip() or "nobody"
    facts = [
        ("class", f"{description.module}.{description.actor_class}"),
        (
            "state",
            f"{description.state} for {duration(description.age_s)}, incarnation {description.incarnation}",
        ),
        (
            "process",
            f"{description.node}/{description.process}   pid {description.pid}   {description.endpoint}",
        ),
        ("mailbox", f"{lanes}   limit {description.mailbox_limit}"),
        (
            "messages",
            f"{description.handled:,} handled   {description.dropped:,} dropped   {description.rate:,.1f}/s",
        ),
        (
            "supervisor",
            f"{supervised}   {description.restarts} restarts"
            if not description.owner
            else f"owned by {description.owner}",
        ),
        ("journal", description.journal or "-"),
    ]
    if description.last_failure and description.failure is None:
        facts.append(("last failure", " ".join(description.last_failure.split())))
    return _grid(facts)


def _grid(facts: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(f"  {name}", Text(value))
    return grid


def _section(title: str, names: Sequence[str]) -> list[RenderableType]:
    if not names:
        return []
    return [Text(f"\n{title}", style="bold"), Padding(Text(", ".join(names)), (0, 0, 0, 2))]
