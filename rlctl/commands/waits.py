"""`rlctl waits`: waits of a cluster's actors, the longest first."""

import argparse
from collections.abc import Iterable, Sequence

import msgspec

from gleaner.nodeagent.cluster_view import ClusterReplies
from gleaner.rlctl.columns import Column, Styled, fitted
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_deadline,
    add_json,
    ask_everywhere,
    console,
    print_json,
    tell_silent,
)
from gleaner.rlctl.errors import OK, usage
from gleaner.rlctl.quantity_format import age
from gleaner.supervisor.system_messages import ExpiredWait, ListWaits, WaitsOf, WaitState

_DESCRIPTION = """\
Show every wait of an actor on another component: the waiting actor, the awaited event and component, the
start, and the time left. The longest wait is shown first.

A wait that passes its deadline is an event: it is logged and counted, and --expired shows the newest ones.
An actor with an empty mailbox does not count as waiting."""

_EXAMPLES = """\
  rlctl waits
  rlctl waits --limit 5
  rlctl waits --expired             what passed its deadline, the newest first
  rlctl waits --json --head tcp://10.0.0.1:7700 --head-key head.public --keys keys/laptop"""

MAX_LIMIT = 10_000
_COLUMNS = (
    Column("WHO"),
    Column("FOR"),
    Column("SINCE", right=True),
    Column("DEADLINE", right=True),
    Column("EXPIRED", right=True, spare=2),
    Column("PROCESS", spare=1),
    Column("ON"),
)
_EXPIRED = (
    Column("AGO", right=True),
    Column("WHO"),
    Column("FOR"),
    Column("WAITED", right=True),
    Column("PROCESS", spare=2),
    Column("ON", spare=1),
    Column("REASON"),
)


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "waits",
        waits,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "--limit", type=int, default=100, metavar="N", help="show at most N waits (default: 100)"
    )
    parser.add_argument("--expired", action="store_true", help="show the waits that passed their deadline")
    add_cluster(parser)
    add_deadline(parser)
    add_json(parser)


def waits(args: argparse.Namespace) -> int:
    """Run the command."""
    if not 1 <= args.limit <= MAX_LIMIT:
        raise usage(f"--limit {args.limit}: expected 1 to {MAX_LIMIT}")
    seen = ask_everywhere(args, ListWaits(limit=args.limit), WaitsOf)
    if args.json:
        print_json(as_json(seen, args.limit))
        return OK
    out = console()
    if args.expired:
        out.print(fitted(_EXPIRED, expired_rows(seen.answers, args.limit), out.width))
    else:
        rows = wait_rows(seen.answers, args.limit)
        out.print(fitted(_COLUMNS, rows, out.width) if rows else "nobody waits")
    tell_silent(seen.silent, out)
    return OK


def wait_rows(answers: Iterable[WaitsOf], limit: int) -> list[Sequence[str]]:
    """The table's rows."""
    return [
        (
            _actor_name(wait.who),
            wait.what,
            age(wait.since_s),
            Styled(age(wait.left_s), "" if wait.left_s > 0 else "bold red"),
            Styled(str(wait.expired or "-"), "red" if wait.expired else ""),
            f"{answer.node}/{answer.process}",
            wait.on,
        )
        for answer, wait in longest(answers)[:limit]
    ]


def expired_rows(answers: Iterable[WaitsOf], limit: int) -> list[Sequence[str]]:
    """The rows of --expired, the newest first."""
    return [
        (
            age(ago_s),
            _actor_name(gone.who),
            gone.what,
            age(gone.waited_s),
            f"{answer.node}/{answer.process}",
            gone.on,
            gone.reason,
        )
        for ago_s, answer, gone in newest_expired(answers)[:limit]
    ]


def as_json(seen: ClusterReplies[WaitsOf], limit: int) -> dict[str, object]:
    """The JSON object; expired waits have their age in place of the process's clock."""
    return {
        "waits": [_plain(wait, answer) for answer, wait in longest(seen.answers)[:limit]],
        "expired": [
            {**_plain(gone, answer), "ago_s": ago_s}
            for ago_s, answer, gone in newest_expired(seen.answers)[:limit]
        ],
        "counts": [
            {"node": answer.node, "process": answer.process, "expired": answer.counts}
            for answer in seen.answers
        ],
        "silent": seen.silent,
    }


def longest(answers: Iterable[WaitsOf]) -> list[tuple[WaitsOf, WaitState]]:
    """All waits, the longest first, each with its process."""
    found = [(answer, wait) for answer in answers for wait in answer.waits]
    return sorted(found, key=lambda pair: -pair[1].since_s)


def newest_expired(answers: Iterable[WaitsOf]) -> list[tuple[float, WaitsOf, ExpiredWait]]:
    """All expired waits, the newest first, each with its age in seconds and its process."""
    found = [(answer.now_s - gone.at_s, answer, gone) for answer in answers for gone in answer.expired]
    return sorted(found, key=lambda entry: entry[0])


def _plain(message: msgspec.Struct, answer: WaitsOf) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(message)
    own = {name: value for name, value in fields.items() if name not in ("type", "at_s")}
    return {"node": answer.node, "process": answer.process, **own}


def _actor_name(name: str) -> str:
    return "(runtime)" if name.startswith("$") else name
