"""Arguments and help texts of the command `nodeagent`."""

import argparse
from functools import cache
from pathlib import Path
from typing import get_args

from gleaner.nodeagent.defaults import GRACE_S, ROLES
from gleaner.nodeagent.exit_codes import MEANINGS
from gleaner.nodeagent.host import LEASE_S, LOOPBACK
from gleaner.nodeagent.notices.cloud import Source
from gleaner.transport.keys import Bulk

_START = """\
examples:
  a head that starts the other hosts itself, as processes of this machine (what `rlctl run` does):
    nodeagent start --role head --fleet local --state-dir runs/first/nodes/head
  a head that others join over the network, with keys made by `rlctl keygen`:
    nodeagent start --role head --listen tcp://10.0.0.1:7700 --keys /etc/gleaner/keys
  a preemptible host that joins it; it leaves in order on SIGTERM:
    nodeagent start --join tcp://10.0.0.1:7700 --head-key /etc/gleaner/head.public \\
        --listen tcp://10.0.0.7:0 --keys /etc/gleaner/keys --bulk clear --name spot-7
  the same in a pod with terminationGracePeriodSeconds: 60, on GCP:
    nodeagent start ... --notices gcp --grace 60
  a head that may fail over, and its standby on another host (hosts then join both addresses):
    nodeagent start --role head --listen tcp://10.0.0.1:7700 --keys /etc/gleaner/keys \
        --journal postgresql://gleaner@db.example/gleaner
    nodeagent start --role head --listen tcp://10.0.0.2:7700 --keys /etc/gleaner/keys \
        --journal postgresql://gleaner@db.example/gleaner --standby --name head-2
"""


@cache
def parser() -> argparse.ArgumentParser:
    """Parser of the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    words = argparse.ArgumentParser(
        prog="nodeagent",
        description="The daemon of a host: joins a head, runs the host's part of the job, leaves in order.",
        epilog=MEANINGS,
    )
    commands_ = words.add_subparsers(dest="command", required=True, metavar="start|status|drain|stop")
    start = commands_.add_parser(
        "start", help="run the node agent here", epilog=f"{_START}\n{MEANINGS}", formatter_class=raw
    )
    start.add_argument(
        "--join",
        metavar="ADDR",
        action="append",
        default=[],
        help="address of the head (tcp://HOST:PORT); several where it may fail over, repeated or by commas",
    )
    start.add_argument(
        "--role", choices=ROLES, help="role of this host (default: head without --join, preemptible with it)"
    )
    start.add_argument("--name", help="name of this host in the cluster (default: head, or the host's name)")
    start.add_argument("--state-dir", type=Path, help="journals, logs, agent.json (one agent a directory)")
    start.add_argument(
        "--listen", metavar="ADDR", default=LOOPBACK, help="own address; beyond loopback --keys is needed"
    )
    start.add_argument("--keys", metavar="DIR", type=Path, help="key directory made by `rlctl keygen`")
    start.add_argument(
        "--bulk",
        choices=get_args(Bulk),
        default="loopback",
        help="where weights may travel unencrypted: inside this host (default), or also on the network of "
        "--listen, where others can read them",
    )
    start.add_argument(
        "--datacenter",
        metavar="NAME",
        default="",
        help="datacenter of this host: weights cross to another datacenter once, and are relayed in it",
    )
    start.add_argument(
        "--head-key",
        metavar="KEY",
        action="append",
        default=[],
        help="public key of the head: a file or the key itself; one for each address of --join",
    )
    start.add_argument(
        "--journal",
        metavar="URL",
        default="",
        help="head only: keep its journals in this PostgreSQL database, so that another host can take over",
    )
    start.add_argument(
        "--standby",
        action="store_true",
        help="with --journal: run as standby; take over when the head's lease expires",
    )
    start.add_argument(
        "--lease",
        type=float,
        default=LEASE_S,
        metavar="S",
        help="with --journal: lease duration of the head, after which a standby takes over (default: 10)",
    )
    start.add_argument(
        "--fleet",
        choices=("local", "external"),
        default="external",
        help="head only: start the job's other hosts as local processes, or let hosts join (default)",
    )
    start.add_argument(
        "--gateway",
        metavar="HOST:PORT",
        default="",
        help="head only: serve the job's rollout over HTTP at this address; overrides the job's settings",
    )
    start.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="serve this host's metrics to Prometheus at this address, such as 127.0.0.1:9464 (default: off)",
    )
    start.add_argument(
        "--notices",
        choices=get_args(Source),
        default="auto",
        help="preemptible host: cloud whose metadata service announces a preemption (default: auto, which "
        "probes for it; none where the head is on this machine)",
    )
    start.add_argument(
        "--notices-url",
        metavar="URL",
        default="",
        help="URL of the metadata service, if not http://169.254.169.254",
    )
    start.add_argument(
        "--grace",
        type=float,
        default=GRACE_S,
        metavar="S",
        help="grace period between the sender's SIGTERM and SIGKILL (terminationGracePeriodSeconds, Slurm's "
        "KillWait or GraceTime): an ordered end takes no longer (default: 30)",
    )
    for name, text, example in (
        ("status", "show the node agent and its children", "nodeagent status --json"),
        ("drain", "drain the host's requests to others, then leave", "nodeagent drain --deadline 30"),
        ("stop", "stop the node agent and its children in order", "nodeagent stop"),
    ):
        sub = commands_.add_parser(
            name, help=text, epilog=f"example: {example} --state-dir DIR\n{MEANINGS}", formatter_class=raw
        )
        sub.add_argument("--state-dir", type=Path, help="state directory of the agent (default: the head's)")
        sub.add_argument("--json", action="store_true", help="one JSON object for machines")
        if name == "drain":
            sub.add_argument(
                "--deadline", type=float, default=30.0, metavar="S", help="seconds left (default: 30)"
            )
    return words
