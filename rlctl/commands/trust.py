"""`rlctl trust`: admits a key to a running node, or lists the trusted keys."""

import argparse
from pathlib import Path

from rich.table import Table
from rich.text import Text

from gleaner.configs.trace import INSTANCE
from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json, console, print_json
from gleaner.rlctl.errors import FAILED, OK, failed, nothing, usage
from gleaner.transport.keys import BadKeys, fingerprint, is_key, read_key
from gleaner.transport.trusted import NameTaken, key_directories, listed, trust

_DESCRIPTION = """\
Admit a key to a node: write DIR/trusted/<name>.public.

KEY is a public key (40 characters), a file that holds one, a node's key directory, or the name of a node
whose directory `rlctl keygen` made in or beside DIR. DIR is the node's key directory, or the folder of
several that keygen made: then all of them admit the key. The node need not restart: each of its processes
reads the list twice a second, and the key can connect within a second; a host that was refused tries again
within half a minute. Trust has one direction; most pairs need both.

With --list (or without KEY) it shows the trusted keys, with short fingerprints to compare by telephone."""

_EXAMPLES = """\
  rlctl trust spot-7.public --keys /etc/gleaner/keys          a file, known as spot-7 from now on
  rlctl trust '}LtZ+.S(&P.d{I[4)%mJQ7/@ZZSkEqH2vwSK<$p7' --name spot-7 --keys /etc/gleaner/keys
  rlctl trust spot-7 --keys keys                              every node of that folder admits keys/spot-7
  rlctl trust --list --keys /etc/gleaner/keys"""


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands, "trust", run, description=_DESCRIPTION,
        examples=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument("who", nargs="?", default="", metavar="KEY", help="name, file, key directory, or key")
    parser.add_argument(
        "--name", default="", help="name of the key in the list (default: from the file or directory)"
    )
    parser.add_argument("--list", action="store_true", help="show the trusted keys, change nothing")
    add_key_directory(parser)
    add_json(parser)


def add_key_directory(parser: argparse.ArgumentParser) -> None:
    """`--keys`, of the node whose list is used."""
    parser.add_argument(
        "--keys",
        type=Path,
        default=Path("keys"),
        metavar="DIR",
        help="key directory of the node, or a folder of several (default: keys)",
    )


def chosen_directories(args: argparse.Namespace) -> list[Path]:
    """The key directories of `--keys`. Raises CommandError."""
    found = list(key_directories(args.keys))
    if not found:
        raise nothing(
            f"{args.keys}: no key directory (no node.public in it or one below): give --keys, or make one "
            "with `rlctl keygen`"
        )
    return found


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.list and args.who:
        raise usage("--list shows the trusted keys: leave KEY out")
    directories = chosen_directories(args)
    if args.list or not args.who:
        return _show(directories, as_json=args.json)
    name, key = _identify(args.who, args.keys)
    name = args.name or name
    if not INSTANCE.fullmatch(name) or set(name) == {"."}:
        raise usage(f"--name {name!r}: use 1 to 64 letters, digits, '_', '.' or '-'")
    entries = []
    try:
        for directory in directories:
            entries.append((directory, _trust(directory, name, key)))
    except (NameTaken, BadKeys, OSError) as problem:
        raise failed(str(problem)) from problem
    if args.json:
        results = [{"keys": str(directory), "result": result} for directory, result in entries]
        print_json({"name": name, "public": key, "fingerprint": fingerprint(key), "directories": results})
        return OK
    out = console()
    for directory, result in entries:
        out.print(f"{directory}: {name} ({fingerprint(key)}) {result}", markup=False)
    if any(result == TRUSTED_NOW for _directory, result in entries):
        out.print("running nodes that read these directories admit it within a second; copies need copying")
    return OK


TRUSTED_NOW = "is trusted now"


def _trust(directory: Path, name: str, key: str) -> str:
    if read_key(directory / "node.public") == key:
        return "is this node itself"
    aliases = [one.name for one in listed(directory) if one.key == key and one.name != name]
    if aliases:
        return f"is trusted already, as {', '.join(aliases)}"
    return TRUSTED_NOW if trust(directory, name, key) else "is trusted already"


def _identify(name: str, keys: Path) -> tuple[str, str]:
    """(name, key) of the user's argument. Raises CommandError."""
    given = Path(name)
    plain = given.name == name and name not in (".", "..")
    named = [folder / name for folder in (keys, keys.parent) if plain]
    try:
        for directory in [given, *named]:
            if (directory / "node.public").is_file():
                return directory.resolve().name, read_key(directory / "node.public")
        if given.is_file():
            own = given.name == "node.public"
            return (given.resolve().parent.name if own else given.stem), read_key(given)
    except BadKeys as problem:
        raise usage(str(problem)) from problem
    if is_key(name):
        return fingerprint(name), name
    places = " or ".join(f"{place}/node.public" for place in named)
    raise nothing(
        f"{name}: no key, and no file or directory with one" + (f" (nor is there {places})" if places else "")
    )


def _show(directories: list[Path], *, as_json: bool) -> int:
    """Print the trusted keys of each node; exit code 1 when a file is damaged."""
    try:
        found = [
            (directory, read_key(directory / "node.public"), listed(directory)) for directory in directories
        ]
    except (BadKeys, OSError) as problem:
        raise failed(str(problem)) from problem
    damaged = any(one.problem for _directory, _own, everyone in found for one in everyone)
    if as_json:
        print_json(
            {
                "directories": [
                    {
                        "keys": str(directory),
                        "public": own,
                        "fingerprint": fingerprint(own),
                        "trusted": [
                            {
                                "name": one.name,
                                "public": one.key,
                                "fingerprint": one.fingerprint,
                                "problem": one.problem,
                            }
                            for one in everyone
                        ],
                    }
                    for directory, own, everyone in found
                ]
            }
        )
        return FAILED if damaged else OK
    out = console()
    for directory, own, everyone in found:
        shown = Table(box=None, pad_edge=False)
        for title in ("NAME", "FINGERPRINT", "KEY"):
            shown.add_column(title, no_wrap=title != "KEY", overflow="fold")
        for one in everyone:
            shown.add_row(Text(one.name), one.fingerprint or "-", Text(one.problem or one.key))
        out.print(f"{directory} ({fingerprint(own)}) trusts {len(everyone)}:", markup=False)
        out.print(shown)
    return FAILED if damaged else OK
