"""A child process of a node agent: `python -m nodeagent.process KIND ...`.

Owns nothing but the order: die with the parent, open the host, run the tree of its kind, stop in order on
SIGTERM, leave with exit code 7 and the chain of causes when its supervisor gives up.
"""

import sys

from supervisor.process import die_with_parent

if __name__ == "__main__":
    die_with_parent()  # before the imports below: they take a second, and the parent may be killed meanwhile

import argparse
import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgspec

from actors.cluster.job import config_of
from actors.cluster.messages import JobSpec
from nodeagent.exit_codes import FAILED, MEANINGS, OK, USAGE, CannotRun, as_cannot_run
from nodeagent.files import ProcessFile, publish_process
from nodeagent.host import LOOPBACK, Bounds, Seat, open_log, open_system, prepare_state_dir, run_process
from nodeagent.restarts import RestartReporter
from nodeagent.shutdown import Shutdown
from nodeagent.traces import open_tracer
from nodeagent.trees import TREES, Place
from supervisor import Supervisor
from transport.keys import Bulk
from transport.wire import Peer

log = logging.getLogger("nodeagent")

DATABASE_VARIABLE = "GLEANER_DATABASE"  # its URL may hold a password


def arguments(kind: str, seat: Seat, job_file: Path) -> list[str]:
    """The command line that starts a process of `kind` beside the node agent that sits at `seat`."""
    assert seat.head is not None, "a child process needs to know the head"
    argv = [sys.executable, "-m", "nodeagent.process", kind, "--node", seat.node]
    argv += ["--state-dir", str(seat.state_dir), "--job", str(job_file)]
    argv += [word for head in seat.heads for word in ("--head", format_peer(head))]
    argv += ["--listen", f"{seat.interface}:0"]
    argv += ["--bulk", seat.bulk, *(["--term", str(seat.term)] if seat.database else [])]
    return argv if seat.keys is None else [*argv, "--keys", str(seat.keys)]


def environment(seat: Seat) -> dict[str, str]:
    """What such a process needs to know and others must not read in a list of processes."""
    return {DATABASE_VARIABLE: seat.database} if seat.database else {}


def format_peer(peer: Peer) -> str:
    """`ENDPOINT` or `ENDPOINT,KEY`; a z85 key holds no comma."""
    return f"{peer.endpoint},{peer.public_key}" if peer.public_key else peer.endpoint


def parse_peer(text: str) -> Peer:
    """The inverse of `format_peer`."""
    endpoint, _, key = text.partition(",")
    return Peer(endpoint, key)


def read_job(path: Path) -> JobSpec:
    """The job that a node agent wrote for its children. Raises CannotRun."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=JobSpec)
    except OSError as problem:
        raise CannotRun(USAGE, f"{path}: {problem.strerror}; the node agent writes it") from problem
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise CannotRun(USAGE, f"{path}: not a job: {problem}") from problem


async def serve(kind: str, seat: Seat, job_file: Path, stop: Shutdown) -> int:
    """Run the tree of `kind` until `stop`, or until it gives up."""
    prepare_state_dir(seat.state_dir)
    job = read_job(job_file)
    seat = replace(seat, job=job.run_id)
    config = config_of(job)
    bounds = Bounds.of(config)
    open_log(seat, bounds.log_bytes)
    spec = TREES[kind](Place(job, config, seat.node))
    failures: list[Exception] = []

    def gave_up(problem: Exception) -> None:
        failures.append(problem)
        stop.set()

    def started(task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if isinstance(problem, Exception):
            gave_up(problem)

    tracer = open_tracer(config.traces, seat.node, kind, seat.log_file, bounds.log_bytes)
    async with open_system(seat, bounds) as system:
        system.tracer = tracer
        local = system.wire.local
        publish_process(
            seat.state_dir,
            kind,
            ProcessFile(endpoint=local.endpoint, public_key=local.public_key, pid=os.getpid()),
        )
        log.info("%s of job %s listens at %s", kind, job.run_id, local.endpoint)
        reporter = RestartReporter(system)
        tree = Supervisor(system, spec, on_failure=gave_up, on_restart=reporter)
        # Beside the wait: an actor may take long to start (it loads, it asks), a stop must not wait for that.
        starting = asyncio.get_running_loop().create_task(tree.start())
        starting.add_done_callback(started)
        await stop.wait()
        reporter.close()
        await tree.stop()
    if tracer is not None:
        await tracer.close()
    if failures:
        raise as_cannot_run(failures[0]) or CannotRun(FAILED, str(failures[0]))
    log.info("stopped in order")
    return OK


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="nodeagent.process",
        description="One process of a job on this host. The node agent starts it; people have no need to.",
        epilog=MEANINGS,
    )
    parser.add_argument("kind", choices=sorted(TREES), help="what runs in it")
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
    parser.add_argument("--term", type=int, help="of the head's lease; journals are in its database")
    args = parser.parse_args(argv)
    head, *others = args.head
    seat = Seat(
        args.node,
        args.kind,
        args.state_dir,
        args.listen,
        args.keys,
        head,
        bulk=args.bulk,
        others=tuple(others),
        database=os.environ.get(DATABASE_VARIABLE, "") if args.term is not None else "",
        term=args.term or 0,
    )
    name = f"{args.node}/{args.kind}"
    return run_process(lambda stop: serve(args.kind, seat, args.job, stop), name)


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    # All is closed and on disk; to tear torch's libraries down would take seconds of the host's notice.
    os._exit(exit_code)
