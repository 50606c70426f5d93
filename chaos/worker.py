"""`python -m gleaner.chaos.worker [--mutation NAME]`: simulated jobs, one per order.

Reads orders from standard input. Owns a process of its own, so that a run cannot affect another one, a
planted bug stays in it, and a run that never returns can be killed. An order is a line of JSON
(`run_orders.Order`), so is each answer. Nothing of the product is imported before the bug is planted.
"""

import argparse
import gc
import logging
import os
import sys
from collections.abc import Sequence

from gleaner.chaos.mutants import edits_of
from gleaner.chaos.mutate import plant


def main(argv: Sequence[str] | None = None) -> int:
    """Run orders until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m gleaner.chaos.worker")
    parser.add_argument("--mutation", default="", help="the planted bug, or the mutant, to plant first")
    args = parser.parse_args(argv)
    if args.mutation:
        plant(edits_of(args.mutation))
    return _serve()


def _serve() -> int:
    import msgspec

    from gleaner.chaos.plan import Loaded, load
    from gleaner.chaos.run_orders import RunOrder
    from gleaner.chaos.sim_run import run

    logging.disable(logging.CRITICAL)  # 1000 runs log the same lines; a replay shows them
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other output must not mix with the answers
    loaded: dict[tuple[str, tuple[str, ...]], Loaded] = {}
    gc.freeze()  # what was imported is no garbage: collections need not look at it in every second of a run
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=RunOrder)
        key = order.campaign, order.availability
        if key not in loaded:
            loaded[key] = load(*key)
        result = run(loaded[key], order.seed, order.schedule, stop_at=order.stop_at)
        answers.write(msgspec.json.encode(result) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
