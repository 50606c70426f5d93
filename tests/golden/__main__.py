"""Updates the golden files: `python -m tests.golden [--change NAME...]`.

New entries are added, and entries of removed kinds are removed. An entry whose bytes changed stays as it is,
and the exit code is 1, unless its name is given after `--change` (`--change all` for every one).
"""

import argparse
import sys

from tests.golden import book


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 when an entry changed that is not named by `--change`."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--change", nargs="+", default=[], metavar="NAME")
    allowed = set(parser.parse_args(arguments).change)
    held = 0
    pages, old = book.current(), book.written()
    known = {name: entry for entries in old.values() for name, entry in entries.items()}
    for module, entries in pages.items():
        for name, entry in entries.items():
            before = known.pop(name, None)
            if before is None:
                print(f"added    {module}: {name}")
            elif before != entry:
                if allowed & {name, "all"}:
                    print(f"changed  {module}: {name}")
                else:
                    print(f"HELD     {module}: {name}: its bytes differ; --change {name} if that is meant")
                    entries[name], held = before, held + 1
    for name in known:
        print(f"removed  {name}")
    book.write(pages)
    return 1 if held else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
