"""Command line of a child process of a node agent, written and parsed here.

Owns the arguments of `python -m gleaner.nodeagent.process KIND ...` and their meaning.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

from gleaner.nodeagent.exit_codes import MEANINGS
from gleaner.nodeagent.host import LOOPBACK, ProcessLocation
from gleaner.nodeagent.launch import USUAL, Launch
from gleaner.nodeagent.process_trees import TREES, tree_of
from gleaner.transport.keys import Bulk
from gleaner.transport.wire import Peer

MODULE = "gleaner.nodeagent.process"
_KINDS = ", ".join([*sorted(TREES), "rank-N"])
DATABASE_VARIABLE = "GLEANER_DATABASE"  # its URL may hold a password


@dataclass(frozen=True, slots=True)
class ChildCommand:
    """A child process to start: which kind of tree, where it sits, and the file with its job. launch: of an
    engine."""

    kind: str
    location: ProcessLocation
    job_file: Path
    launch: Launch = USUAL


def arguments(kind: str, location: ProcessLocation, job_file: Path, launch: Launch = USUAL) -> list[str]:
    """The command line that starts a process of `kind` beside the node agent that sits at `location`.
    launch: of an engine."""
    assert location.head is not None, "a child process needs the head's address and key"
    argv = [sys.executable, "-m", MODULE, kind, "--node", location.node]
    argv += ["--state-dir", str(location.state_dir), "--job", str(job_file)]
    argv += [word for head in location.heads for word in ("--head", format_peer(head))]
    argv += ["--listen", f"{location.interface}:0"]
    argv += ["--bulk", location.bulk, *(["--term", str(location.term)] if location.database else [])]
    argv += ["--datacenter", location.datacenter] if location.datacenter else []
    argv += ["--width", str(launch.width)] if launch.width else []
    argv += ["--trial"] if launch.trial else []
    return argv if location.keys is None else [*argv, "--keys", str(location.keys)]


def environment(location: ProcessLocation) -> dict[str, str]:
    """Environment of such a process: values that must not be visible in a list of processes."""
    return {DATABASE_VARIABLE: location.database} if location.database else {}


def format_peer(peer: Peer) -> str:
    """`ENDPOINT` or `ENDPOINT,KEY`; a z85 key holds no comma."""
    return f"{peer.endpoint},{peer.public_key}" if peer.public_key else peer.endpoint


def parse_peer(text: str) -> Peer:
    """The inverse of `format_peer`."""
    endpoint, _, key = text.partition(",")
    return Peer(endpoint, key)


def _kind(text: str) -> str:
    if tree_of(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {_KINDS}")
    return text


def parse(argv: Sequence[str] | None, env: Mapping[str, str]) -> ChildCommand:
    """Parse the arguments after the module's name; None: those of this process. `env`: its environment. Ends
    the process, as argparse does, on invalid ones."""
    args = _parser().parse_args(argv)
    head, *others = args.head
    location = ProcessLocation(
        args.node,
        args.kind,
        args.state_dir,
        args.listen,
        args.keys,
        head,
        bulk=args.bulk,
        others=tuple(others),
        database=env.get(DATABASE_VARIABLE, "") if args.term is not None else "",
        term=args.term or 0,
        datacenter=args.datacenter,
    )
    return ChildCommand(args.kind, location, args.job, Launch(args.width, args.trial))


@cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=MODULE,
        description="One process of a job on this host. The node agent starts it; users need not.",
        epilog=MEANINGS,
    )
    parser.add_argument("kind", type=_kind, help=f"kind of the process: {_KINDS}")
    parser.add_argument("--node", required=True, help="name of the host")
    parser.add_argument("--state-dir", required=True, type=Path, help="state directory of the host")
    parser.add_argument(
        "--head", required=True, action="append", type=parse_peer, help="ENDPOINT or ENDPOINT,KEY; repeatable"
    )
    parser.add_argument("--job", required=True, type=Path, help="file with the job (JSON)")
    parser.add_argument("--listen", default=LOOPBACK, help="address to listen at (default: %(default)s)")
    parser.add_argument("--keys", type=Path, help="key directory, needed beyond loopback")
    parser.add_argument(
        "--bulk", choices=get_args(Bulk), default="loopback", help="where weights may travel unencrypted"
    )
    parser.add_argument("--datacenter", default="", help="datacenter of the host")
    parser.add_argument(
        "--width", type=int, default=0, help="tensor-parallel width of an engine; 0: as the settings have it"
    )
    parser.add_argument("--trial", action="store_true", help="an engine ends at its first failure")
    parser.add_argument("--term", type=int, help="term of the head's lease; journals are in its database")
    return parser
