"""Shared parts of the commands: parsers, options for runs and clusters, printing.

Owns no command. Every command imports this module, so it imports the client, the terminal library and JSON
only on use.
"""

import argparse
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from gleaner.nodeagent.defaults import LOOK_S, MAX_LOOK_S
from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.nodeagent.state_lock import holder
from gleaner.rlctl.errors import MEANINGS, CommandError, failed, nothing, usage
from gleaner.rlctl.plain_output import PIPE_WIDTH

if TYPE_CHECKING:
    from rich.console import Console

    from gleaner.nodeagent.cluster_view import ClusterReplies, Processes
    from gleaner.rlctl.client import Cluster
    from gleaner.rlctl.control import ProcessSummaries
    from gleaner.rlctl.runs import RunDir
    from gleaner.supervisor import Message

T = TypeVar("T")
R = TypeVar("R", bound="Message")


class Subparsers(Protocol):
    """The object that `argparse` gives for adding commands."""

    def add_parser(
        self,
        name: str,
        *,
        help: str,
        description: str,
        epilog: str,
        formatter_class: type[argparse.HelpFormatter],
    ) -> argparse.ArgumentParser:
        """A parser for one command."""


def add_command(
    commands: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str = "",
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """A command with a detailed help text; `run` returns the exit code. help: the command's line in its
    parent's help; `command_list` has the lines of `rlctl` itself."""
    parser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=f"examples:\n{examples.rstrip()}\n\n{MEANINGS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="one JSON object for machines")


def add_runs_dir(parser: argparse.ArgumentParser) -> None:
    """`--runs-dir`."""
    parser.add_argument(
        "--runs-dir",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder of all runs (default: runs)",
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """The options that choose the cluster."""
    parser.add_argument(
        "--run", dest="run_name", default="", metavar="RUN", help="id or path (default: the active run)"
    )
    add_runs_dir(parser)
    add_head(parser)


def add_head(parser: argparse.ArgumentParser) -> None:
    """The options that name a cluster by its head."""
    parser.add_argument(
        "--head",
        metavar="ADDR",
        help="head of a cluster elsewhere: tcp://HOST:PORT; several where the head may fail over: A,B",
    )
    parser.add_argument(
        "--head-key", metavar="KEY", help="public key of that head: a file, or the key itself; or K1,K2"
    )
    parser.add_argument("--keys", type=Path, metavar="DIR", help="own key directory, from `rlctl keygen`")


def head_key(args: argparse.Namespace) -> str:
    """The key of `--head-key`, or several, separated by commas. Raises CommandError."""
    if not args.head_key:
        if args.keys is not None:
            raise usage("--keys needs --head-key: the head's node.public, or the key in it")
        return ""
    if args.keys is None:
        raise usage("--head-key needs --keys: the head admits known keys only")
    keys = [_key(text) for text in str(args.head_key).split(",")]
    heads = len(str(args.head or "").split(","))
    if args.head and len(keys) != heads:
        raise usage(f"--head names {heads} addresses and --head-key {len(keys)} keys: give one for each")
    return ",".join(keys)


def _key(text: str) -> str:
    from gleaner.transport.keys import Z85_KEY_CHARS

    if len(text) != Z85_KEY_CHARS or Path(text).exists():
        try:
            text = Path(text).read_text().strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise usage(f"--head-key {text}: no key and no file: {problem}") from problem
    return text


def address(text: str) -> str:
    """The address of `--head`, or several, separated by commas. Raises CommandError."""
    from gleaner.transport.endpoint import endpoint

    try:
        return ",".join(map(endpoint, text.split(",")))
    except ValueError as problem:
        raise usage(f"--head {problem}") from problem


def local_run(args: argparse.Namespace) -> "RunDir | None":
    """The run of this machine that the options choose, None for `--head`. Raises CommandError where none
    runs, or its head does not."""
    if args.head:
        return None
    from gleaner.rlctl.runs import find_driven

    run = find_driven(args.runs_dir, args.run_name)
    try:
        holder(run.head)
    except CannotRun as problem:
        raise nothing(str(problem)) from problem
    return run


@asynccontextmanager
async def chosen_cluster(args: argparse.Namespace) -> "AsyncIterator[Cluster]":
    """The chosen cluster. Raises CommandError where it does not run or does not answer."""
    driven = local_run(args)
    from gleaner.rlctl.client import (  # the client is not needed where no run is active
        connect,
        connect_to_run,
    )
    from gleaner.supervisor import AskFailed, Refused
    from gleaner.transport.keys import BadKeys

    try:
        if driven is None:
            async with connect(address(args.head), args.keys, head_key=head_key(args)) as cluster:
                await cluster.probe()
                yield cluster
        else:
            async with connect_to_run(driven) as cluster:
                await cluster.probe()
                yield cluster
    except CannotRun as problem:
        raise nothing(str(problem)) from problem
    except BadKeys as problem:
        raise usage(str(problem)) from problem
    except Refused as refusal:
        raise failed(str(refusal)) from refusal
    except AskFailed as problem:
        raise failed(f"the cluster does not answer: {problem}") from problem


def add_deadline(parser: argparse.ArgumentParser) -> None:
    """`--deadline`, of a poll of every process."""
    parser.add_argument(
        "--deadline",
        type=float,
        default=LOOK_S,
        metavar="S",
        help=f"a process that does not answer within S is shown as silent (default: {LOOK_S:g})",
    )


def deadline(args: argparse.Namespace) -> float:
    """The seconds of `--deadline`. Raises CommandError."""
    if not 0 < args.deadline <= MAX_LOOK_S:
        raise usage(f"--deadline {args.deadline:g}: expected more than 0 and at most {MAX_LOOK_S:g}")
    return float(args.deadline)


def look_at_processes(args: argparse.Namespace) -> "ProcessSummaries | Processes":
    """A summary of every process of the chosen cluster: from the socket of the head, for a run on this
    machine, or from this process over the network where that head has no control socket."""
    run = local_run(args)
    if run is not None:
        from gleaner.rlctl import control

        with suppress(control.NoControl):
            return control.look(run.head, deadline(args))

    async def look() -> "Processes":
        async with chosen_cluster(args) as cluster:
            return await cluster.processes(deadline(args))

    return run_async(look())


def ask_everywhere(args: argparse.Namespace, question: "Message", expect: type[R]) -> "ClusterReplies[R]":
    """The answers of all processes of the chosen cluster."""

    async def look() -> "ClusterReplies[R]":
        async with chosen_cluster(args) as cluster:
            return await cluster.ask_everywhere(question, expect=expect, deadline_s=deadline(args))

    return run_async(look())


def tell_silent(silent: Sequence[str], out: "Console") -> None:
    """The line that names the actors whose processes did not answer."""
    if silent:
        out.print(silent_line(silent))


def silent_line(silent: Sequence[str]) -> str:
    """Print the actors whose processes did not answer."""
    return f"no answer from {', '.join(silent)}: just started or just gone, stopped, or stuck"


def run_async(work: Coroutine[object, object, T]) -> T:
    """Run a command's coroutine."""
    import asyncio

    return asyncio.run(work)


def print_json(value: object) -> None:
    """One JSON object on standard output."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def console() -> "Console":
    """Standard output; a file or a pipe has no width limit."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, highlight=False, soft_wrap=True, width=width)


def print_errors(problem: CommandError) -> None:
    """Print its lines on standard error."""
    for line in problem.lines:
        sys.stderr.write(f"error: {line}\n")
