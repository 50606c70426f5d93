"""`rlctl revoke`: revokes a key and closes its connections."""

import argparse
from pathlib import Path

from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json, console, print_json
from gleaner.rlctl.commands.trust import add_key_directory, chosen_directories
from gleaner.rlctl.errors import OK, failed, nothing, usage
from gleaner.transport.keys import BadKeys, read_key
from gleaner.transport.trusted import Trusted, revoke

_DESCRIPTION = """\
Revoke a key: remove its files from DIR/trusted/, under all its names there, and close its connections.

KEY is the name of a trusted node, its key, its fingerprint, or a file that holds its key. DIR is the node's
key directory, or the folder of several that keygen made: then none of them trusts the key any longer. The
node need not restart: within a second each of its processes closes the links, token streams and weight pulls
of that key, and does not dial it again. Revoke it on every host that trusts it; `rlctl trust` restores it.

Exit code 3: no key of that name is trusted there."""

_EXAMPLES = """\
  rlctl revoke spot-7 --keys /etc/gleaner/keys
  rlctl revoke 5d41402abc4b --keys keys                       by its fingerprint, from `rlctl trust --list`
  rlctl revoke lost-laptop.public --keys keys --json"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands, "revoke", run, description=_DESCRIPTION,
        examples=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument("who", metavar="KEY", help="name, key, fingerprint, or a file with the key")
    add_key_directory(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    directories = chosen_directories(args)
    what = _meant(args.who)
    try:
        removed = {directory: revoke(directory, what) for directory in directories}
    except OSError as problem:
        raise failed(f"{problem.filename or args.keys}: {problem.strerror}") from problem
    if not any(removed.values()):
        where = ", ".join(str(directory / "trusted") for directory in directories)
        raise nothing(f"{args.who}: no key in {where} has that name or fingerprint: `rlctl trust --list`")
    if args.json:
        entries = [
            {"keys": str(path), "removed": [_entry(one) for one in gone]} for path, gone in removed.items()
        ]
        print_json({"directories": entries})
        return OK
    out = console()
    for directory, gone in removed.items():
        for one in gone:
            out.print(
                f"{directory}: {one.name} ({one.fingerprint or 'damaged'}) is trusted no longer", markup=False
            )
    out.print("running nodes that read these directories cut it off within a second")
    own = args.keys / args.who
    if (own / "node.public").exists():
        out.print(
            f"{own} still exists: move it away, or the next `rlctl keygen` trusts it again", markup=False
        )
    return OK


def _meant(name: str) -> str:
    """`who` itself, or the key in the file of that name. Raises CommandError."""
    file = Path(name)
    if not file.is_file():
        return name
    try:
        return read_key(file)
    except BadKeys as problem:
        raise usage(str(problem)) from problem


def _entry(one: Trusted) -> dict[str, str]:
    return {"name": one.name, "public": one.key, "fingerprint": one.fingerprint}
