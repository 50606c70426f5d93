"""`rlctl publish`: has the instances of a job serve a checkpoint."""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.instances import InstancesAre, ListInstances
from gleaner.rlctl.client import Cluster
from gleaner.rlctl.client_waits import WAIT_S
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
from gleaner.rlctl.errors import OK, failed, usage
from gleaner.rlctl.transfer_agent import CannotPublish
from gleaner.rlctl.weight_publisher import Publication, failure_of
from gleaner.supervisor import AskFailed

_DESCRIPTION = """\
Have the instances of a job serve the weights in a folder, as this version.

DIR is a checkpoint in the Hugging Face format: config.json and one safetensors file, or several with their
index. The weights are copied into the shared memory of this host, whose node agent hashes and serves them;
instances pull them while they decode, and switch by themselves. The job must leave training to you
(training.backend = "own"), and one of its hosts must be this machine. Version numbers increase; the same
files under the same number again change nothing. From Python: `gleaner.publisher`, docs/weights.md."""

_EXAMPLES = """\
  rlctl run quickstart --set training.backend=own          a job that waits for weights; in another terminal:
  rlctl publish my-model --version 0 --wait 60
  rlctl publish checkpoints/step-200 --version 200 --json
  rlctl publish my-model --version 0 --head tcp://10.0.0.1:7700 --head-key head.public --keys keys/laptop"""

LOOK_S = 0.2
TOLD_EVERY_S = 1.0


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "publish",
        publish,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="a Hugging Face checkpoint directory")
    parser.add_argument(
        "--version",
        type=int,
        required=True,
        metavar="N",
        help="number of the version; higher than earlier ones",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="S",
        help="longest wait until an instance serves it (default: 0)",
    )
    parser.add_argument(
        "--host",
        default="",
        metavar="NAME",
        help="host whose agent serves it, where this machine has several",
    )
    parser.add_argument(
        "--model-changed",
        action="store_true",
        help="tensor names, shapes or dtypes differ from those of the previous version",
    )
    add_cluster(parser)
    add_json(parser)


def publish(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.version < 0:
        raise usage(f"--version {args.version}: expected a number from 0 up")
    if not args.directory.is_dir():
        raise usage(f"{args.directory} is no directory: give that of a checkpoint")

    async def work() -> tuple[Publication, str, float, int]:
        async with chosen_cluster(args) as cluster:
            begun_s = time.monotonic()
            progress = _ProgressLines(args.json)
            handed = await cluster.publish(
                args.directory.absolute(),
                args.version,
                host=args.host,
                wait_s=WAIT_S,
                progress=progress,
                model_changed=args.model_changed,
            )
            known = await handed.known()
            known_s = time.monotonic() - begun_s
            return handed, known.root.hex(), known_s, await _served(cluster, args.version, args.wait)

    try:
        handed, root, known_s, served = run_async(work())
    except CannotPublish as problem:
        raise failed(str(problem)) from problem
    if args.json:
        print_json(
            {
                "version": handed.version,
                "root": root,
                "host": handed.host,
                "tensors": handed.tensors,
                "bytes": handed.nbytes,
                "copy_s": round(handed.copy_s, 3),
                "seconds": round(known_s, 3),
                "served_by": served,
            }
        )
    else:
        console().print(
            f"version {handed.version}: {handed.tensors} tensors, {handed.nbytes} bytes, from {handed.host} "
            f"in {known_s:.1f} s; served by {served} instance{'' if served == 1 else 's'}"
            f"{'' if args.wait else ' so far'}"
        )
    if args.wait and not served:
        raise failed(f"no instance serves version {args.version} after {args.wait:g} s: see `rlctl ps`")
    return OK


class _ProgressLines:
    """Progress on standard error, in few lines."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._last_s = quiet, time.monotonic()

    def __call__(self, copied: int, whole: int) -> None:
        now_s = time.monotonic()
        if not self._quiet and now_s - self._last_s >= TOLD_EVERY_S:
            self._last_s = now_s
            sys.stderr.write(f"copied {100 * copied // max(1, whole)} % of {whole} bytes\n")
            sys.stderr.flush()


async def _served(cluster: Cluster, version: int, wait_s: float) -> int:
    """The number of instances that serve the version or a newer one: returns when the first one does, or when
    the time is up. Raises CannotPublish where instances could not load it."""
    until_s = time.monotonic() + wait_s
    while True:
        try:
            seen = await cluster.ask(MANAGER, ListInstances(), expect=InstancesAre)
            served = sum(one.version is not None and one.version >= version for one in seen.instances)
        except AskFailed:
            served = 0
        else:
            if fault := failure_of(seen, [version]):
                raise CannotPublish(fault)
        if served or time.monotonic() >= until_s:
            return served
        await asyncio.sleep(LOOK_S)
