"""`python -m gleaner.chaos.planted_rlctl MUTATION WORD ...`: rlctl with a planted bug or a mutant.

Nothing of the product is imported before the bug is planted. For `rlctl sim replay --mutation`.
"""

import sys

from gleaner.chaos.mutants import edits_of
from gleaner.chaos.mutate import plant


def main(argv: list[str]) -> int:
    """Plant the bug of that name, then run the command."""
    plant(edits_of(argv[0]))
    from gleaner.rlctl.__main__ import main as rlctl

    return rlctl(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
