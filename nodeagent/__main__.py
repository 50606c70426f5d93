"""Command line of the node agent: `nodeagent start|status|drain|stop`.

`start` runs the daemon of a host, the others talk to it. The daemon stays in the foreground: systemd, a
container or `rlctl run` supervises it.
"""

import sys

from gleaner.supervisor.process import die_with_parent

if __name__ == "__main__":
    die_with_parent()  # before the imports below: they take time, and the parent may be killed meanwhile

import argparse
import logging
import os
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.configs.load import ConfigError
from gleaner.configs.trace import INSTANCE
from gleaner.nodeagent import numeric_threads
from gleaner.nodeagent.cli import parser
from gleaner.nodeagent.defaults import MAY_LEAVE
from gleaner.nodeagent.exit_codes import USAGE, CannotRun
from gleaner.nodeagent.files import state_base
from gleaner.nodeagent.host import MIN_LEASE_S, ProcessLocation, run_process
from gleaner.supervisor.fork_server.client import ForkServer
from gleaner.supervisor.journal.store_choice import is_url
from gleaner.transport.endpoint import endpoint
from gleaner.transport.keys import RefusedToListen, is_loopback, require_clear_beyond_loopback
from gleaner.transport.wire import Peer

if TYPE_CHECKING:  # `--help`, `status`, `drain` and `stop` do not import the daemon
    from gleaner.nodeagent.node import Options
    from gleaner.nodeagent.notices.cloud import FindCloud

PRELOADED = "gleaner.nodeagent.preload"
MIN_GRACE_S = 2.0  # children need a moment to stop
MAX_GRACE_S = 3600.0  # a longer grace period is most likely a mistake


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parse(argv)
    try:
        if args.command == "start":
            # Before the imports below: they may start a thread, and only a process of one forks a server.
            forks = _server_of(ForkServer.inherit)
            from gleaner.nodeagent.host_services import RealHostServices
            from gleaner.nodeagent.node import run_node

            options = start_options(args)
            if options.local_fleet and forks is None:
                env = numeric_threads.environment(1)
                forks = _server_of(lambda: ForkServer.execute(PRELOADED, env))
            name = f"nodeagent {options.location.node}"
            return run_process(lambda stop: run_node(options, stop, RealHostServices(forks)), name)
        state_dir = args.state_dir or default_state_dir("head")
    except CannotRun as problem:
        print(f"nodeagent: error: {problem}", file=sys.stderr)
        return problem.code
    from gleaner.nodeagent import commands

    if args.command == "status":
        return run_process(lambda _: commands.status(state_dir, as_json=args.json), "nodeagent status")
    if args.command == "drain":
        work = commands.drain(state_dir, args.deadline, as_json=args.json)
    else:
        work = commands.stop(state_dir, as_json=args.json)
    return run_process(lambda _: work, f"nodeagent {args.command}")


def _server_of(start: Callable[[], ForkServer | None]) -> ForkServer | None:
    """The fork server that `start` starts; None where this machine cannot: processes are executed then."""
    try:
        return start()
    except OSError as problem:
        print(f"nodeagent: no fork server, so processes are executed: {problem}", file=sys.stderr)
        return None


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments after the program's name; None: those of this process. Ends the process, as
    argparse does, on invalid ones."""
    return parser().parse_args(argv)


def start_options(args: argparse.Namespace) -> "Options":
    """The options of `start`. Raises CannotRun (exit code 2) for options that exclude each other."""
    from gleaner.nodeagent.metrics_server import metrics_address
    from gleaner.nodeagent.node import Options

    role = args.role or ("preemptible" if args.join else "head")
    if role == "head" and args.join:
        raise CannotRun(USAGE, "--role head and --join: a head joins no other head; leave one of them out")
    if role != "head" and not args.join:
        raise CannotRun(USAGE, f"--role {role} needs --join with the address of the head")
    if args.fleet == "local" and role != "head":
        raise CannotRun(USAGE, "--fleet local: only a head starts other hosts")
    name = args.name or ("head" if role == "head" else default_name())
    if not INSTANCE.fullmatch(name) or set(name) == {"."}:
        raise CannotRun(USAGE, f"--name {name!r}: use 1 to 64 letters, digits, '_', '.' or '-'")
    heads = _heads(args)
    for head in heads:
        if is_loopback(args.listen) and not is_loopback(head.endpoint):
            raise CannotRun(
                USAGE,
                f"--listen {args.listen}: the head at {head.endpoint} could not reach this host; give "
                "--listen tcp://ADDRESS:0 with this host's address in that network",
            )
    state_dir = args.state_dir or default_state_dir(name)
    listen = _address(args.listen, "--listen")
    serves_weights = role not in ("head", "reward") or args.fleet == "local"
    if args.keys is not None and serves_weights:
        try:
            require_clear_beyond_loopback(listen, args.bulk)
        except RefusedToListen as problem:
            raise CannotRun(USAGE, f"--listen {problem}") from problem
    _check_journal(args, role)
    location = ProcessLocation(
        name,
        "agent",
        state_dir.absolute(),
        listen,
        args.keys,
        heads[0] if heads else None,
        bulk=args.bulk,
        others=heads[1:],
        database=args.journal,
        datacenter=_datacenter(args.datacenter),
    )
    metrics = metrics_address(args.metrics) if args.metrics else None
    if args.gateway and role != "head":
        raise CannotRun(USAGE, f"--gateway {args.gateway}: only a head has a gateway")
    if args.gateway:
        _gateway(args.gateway)
    if not MIN_GRACE_S <= args.grace <= MAX_GRACE_S:
        raise CannotRun(USAGE, f"--grace {args.grace:g}: expected {MIN_GRACE_S:g} to {MAX_GRACE_S:g} s")
    return Options(
        location,
        role,
        local_fleet=args.fleet == "local",
        control=args.fleet == "local",
        metrics=metrics,
        lease_s=args.lease,
        standby=args.standby,
        gateway=args.gateway,
        grace_s=args.grace,
        find_cloud=_notices(args, role, location),
    )


def _datacenter(name: str) -> str:
    if name and not INSTANCE.fullmatch(name):
        raise CannotRun(USAGE, f"--datacenter {name!r}: use 1 to 64 letters, digits, '_', '.' or '-'")
    return name


def _notices(args: argparse.Namespace, role: str, location: ProcessLocation) -> "FindCloud | None":
    """The source of the host's preemption notices. Raises CannotRun if the role's hosts are never
    preempted."""
    if args.notices_url and not re.fullmatch(r"https?://[^/?#\s]+/?", args.notices_url):
        raise CannotRun(USAGE, f"--notices-url {args.notices_url!r}: expected http://HOST:PORT")
    if role not in MAY_LEAVE:
        if args.notices not in ("auto", "none"):
            able = " and ".join(MAY_LEAVE)
            raise CannotRun(USAGE, f"--notices {args.notices}: only {able} hosts follow notices")
        return None
    alone = location.head is not None and is_loopback(location.head.endpoint)
    if args.notices == "none" or (args.notices == "auto" and alone and not args.notices_url):
        return None  # a head on this machine: it is taken away with its head, or never
    from gleaner.nodeagent.notices.cloud_detection import cloud_finder

    return cloud_finder(args.notices, args.notices_url)


def _gateway(listen: str) -> None:
    """Raises CannotRun for an invalid address."""
    from gleaner.nodeagent.gateway_http import address_of

    try:
        address_of(listen)
    except ConfigError as problem:
        raise CannotRun(USAGE, f"--gateway: {problem}") from problem


def _check_journal(args: argparse.Namespace, role: str) -> None:
    """Raises CannotRun for an invalid database of journals, or for a role that cannot use one."""
    if args.journal and not is_url(args.journal):
        raise CannotRun(USAGE, f"--journal {args.journal!r}: expected postgresql://USER@HOST/DATABASE")
    if args.journal and role != "head":
        raise CannotRun(USAGE, "--journal: only a head keeps its journals in a database")
    if args.standby and not args.journal:
        raise CannotRun(USAGE, "--standby needs --journal: the lease of the head is in its database")
    if args.standby and args.fleet == "local":
        raise CannotRun(USAGE, "--standby and --fleet local: hosts that the head starts die with it")
    if args.lease < MIN_LEASE_S:
        raise CannotRun(USAGE, f"--lease {args.lease:g}: expected at least {MIN_LEASE_S:g} s")


def default_name() -> str:
    """The host's name, as far as it can name a folder."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:64] or "host"


def default_state_dir(name: str) -> Path:
    """The default state directory of a node agent."""
    return state_base() / name


def _address(text: str, option: str) -> str:
    try:
        return endpoint(text)
    except ValueError as problem:
        raise CannotRun(USAGE, f"{option} {problem}") from problem


def _heads(args: argparse.Namespace) -> tuple[Peer, ...]:
    """The possible addresses of the head: each address of `--join` with its key."""
    addresses = [_address(text, "--join") for given in args.join for text in given.split(",")]
    keys = [_head_key(text) for given in args.head_key for text in given.split(",")]
    if not addresses:
        return ()
    if keys and args.keys is None:
        raise CannotRun(USAGE, "--head-key needs --keys: the head admits known keys only")
    if not keys and args.keys is not None:
        raise CannotRun(USAGE, "--keys needs --head-key: the head's node.public, or the key in it")
    if keys and len(keys) != len(addresses):
        raise CannotRun(
            USAGE, f"{len(addresses)} heads to join and {len(keys)} keys: give one --head-key for each --join"
        )
    return tuple(map(Peer, addresses, keys or [""] * len(addresses)))


def _head_key(text: str) -> str:
    """The head's public key: given as text, or as a file of one line."""
    if len(text) != 40 or Path(text).exists():
        try:
            text = Path(text).read_text().strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise CannotRun(USAGE, f"--head-key {text}: no key and no file: {problem}") from problem
    return text


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # all is closed: to tear down the libraries of a fork server would take a second
