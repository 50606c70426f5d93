"""`rlctl preempt`: gives a host a preemption notice, as a cloud would."""

import argparse

from gleaner.actors.protocol.cluster import PreemptionNotice
from gleaner.rlctl.commands.terminal import (
    Subparsers,
    add_cluster,
    add_command,
    add_json,
    chosen_cluster,
    console,
    print_json,
    run_async,
)
from gleaner.rlctl.errors import OK, nothing, usage
from gleaner.supervisor import AskTimeout, Done

_DESCRIPTION = """\
Give a preemptible host a preemption notice: it takes no more requests, hands over its own, leaves, exits.

The collected tokens of a request are kept: another instance continues from its last token. A host that
follows a trace is replaced when the trace, or the number of hosts that the job wants, requires it."""

_EXAMPLES = """\
  rlctl preempt spot-2                    in 10 s
  rlctl preempt spot-2 --notice 30
  rlctl preempt spot-2 --notice 0         at once: nothing more is decoded there"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "preempt",
        preempt,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("node", metavar="NODE", help="name of the host (see rlctl ps)")
    parser.add_argument(
        "--notice",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds until the host goes away (default: 10)",
    )
    add_cluster(parser)
    add_json(parser)


def preempt(args: argparse.Namespace) -> int:
    """Run the command."""
    if not 0 <= args.notice < float("inf"):
        raise usage(f"--notice {args.notice:g}: expected a number of seconds ≥ 0")

    async def tell() -> None:
        async with chosen_cluster(args) as cluster:
            agents = [address.name.removesuffix("/agent") for address in await cluster.names()
                      if address.name.endswith("/agent")]  # fmt: skip
            if args.node not in agents:
                raise nothing(f"{args.node}: no such host; there are {', '.join(agents) or 'none'}")
            try:
                notice = PreemptionNotice(deadline_s=args.notice)
                await cluster.ask(f"{args.node}/agent", notice, expect=Done)
            except AskTimeout as problem:
                raise nothing(f"{args.node} does not answer: {problem}") from problem

    run_async(tell())
    if args.json:
        print_json({"node": args.node, "notice_s": args.notice})
    else:
        console().print(f"{args.node} received its notice: it leaves within {args.notice:g} s")
    return OK
