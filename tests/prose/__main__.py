"""`python -m tests.prose [--all
--rates]`: fails on too many avoided words.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.prose.check import exceeded, measure, read_limits

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Exit code: 0, or 1 where a group of words is above its limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description=__doc__)
    parser.add_argument("--all", action="store_true", help="list every occurrence, also below the limits")
    parser.add_argument(
        "--rates", action="store_true", help="print the rates as [tool.prose.limits] and exit"
    )
    asked = parser.parse_args(arguments)
    limits, failed = read_limits(root), False
    for name, own in limits.items():
        folder = measure(root, name)
        if asked.rates:
            rates = ", ".join(
                f"{group} = {math.ceil(rate * 10) / 10:g}" for group, rate in folder.rates().items()
            )
            print(f'"{name}" = {{ {rates} }}')
            continue
        if asked.all:
            print("\n".join(str(finding) for finding in folder.findings))
        if lines := exceeded(folder, own):
            failed = True
            print("\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
