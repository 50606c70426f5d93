"""`rlctl keygen`: one key directory for each node, each trusting all the others."""

import argparse
import itertools
from pathlib import Path

from gleaner.configs.trace import INSTANCE
from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json, console, print_json
from gleaner.rlctl.errors import OK, failed, usage
from gleaner.transport.keys import BadKeys, NodeKeys, fingerprint
from gleaner.transport.trusted import NameTaken, trust

_DESCRIPTION = """\
Make CURVE keys for the nodes of a cluster: DIR/<node>/ with node.public, node.secret and trusted/.

Every node trusts every other one; nodes that DIR already holds also trust the new ones. Copy each directory
to its host in a safe way, and to no other: the secret proves the identity of a node. A process refuses to
listen beyond loopback without keys; a client without a trusted key gets no answer. The trusted keys can be
changed while nodes run: `rlctl trust`, `rlctl revoke`."""

_EXAMPLES = """\
  rlctl keygen keys --node head --node spot-1 --node laptop
  nodeagent start --role head --listen tcp://10.0.0.1:7700 --keys keys/head
  rlctl ps --head tcp://10.0.0.1:7700 --head-key keys/head/node.public --keys keys/laptop"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands, "keygen", keygen, description=_DESCRIPTION,
        examples=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="folder with one key directory for each node"
    )
    parser.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NAME",
        help="name of a node; may be repeated (default: head)",
    )
    add_json(parser)


def keygen(args: argparse.Namespace) -> int:
    """Run the command."""
    names: list[str] = args.node or ["head"]
    for name in names:
        if not INSTANCE.fullmatch(name) or set(name) == {"."}:
            raise usage(f"--node {name!r}: use 1 to 64 letters, digits, '_', '.' or '-'")
        if names.count(name) > 1:
            raise usage(f"--node {name}: is given twice")
        if (args.directory / name / "node.secret").exists():
            raise failed(f"{args.directory / name} has keys: move them away if a new identity is wanted")
    try:
        known = {
            path.parent.name: NodeKeys.load(path.parent) for path in args.directory.glob("*/node.secret")
        }
        made = {name: NodeKeys.generate() for name in names}
        for name, keys in made.items():
            keys.save(args.directory / name)
        everybody = {**known, **made}
        for name, other in itertools.permutations(everybody, 2):
            if name in made or other in made:
                _trust(args.directory / name, other, everybody[other].public)
    except (BadKeys, NameTaken, OSError) as problem:
        raise failed(f"{args.directory}: {problem}") from problem
    if args.json:
        print_json({name: {"path": str(args.directory / name), "public": made[name].public} for name in made})
        return OK
    out = console()
    for name, keys in made.items():
        out.print(f"{args.directory / name}  {keys.public}", markup=False)
    if known:
        out.print(f"{', '.join(sorted(known))}: trust the new ones now; copy their trusted/ again")
    return OK


def _trust(directory: Path, name: str, key: str) -> None:
    """Trust the key under the node's name, or under a longer name while an earlier key of that node is
    trusted."""
    try:
        trust(directory, name, key)
    except NameTaken:
        trust(directory, f"{name}-{fingerprint(key)}", key)
