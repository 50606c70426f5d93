"""The modelled workload of DistRS beside its figures 5 and 7, and what its figure 14a depends on.

    python -m bench.reward.workload_figures --seeds 5

Prints the two tables of docs/evaluation.md. No queue is simulated for the first one: T is when a batch would
be complete if nothing ever queued.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from bench.reward.planning import TWO, Sample, fewest, table
from gleaner.actors.reward.planning.queue_model import Order
from gleaner.sim.rewards.workload import CUDA_STAGES, Batch, CudaLaw, cuda_workload

BIN_S = 10.0
BATCHES = 4
RUN = 1
"""Number of the stage that runs programs."""


def shape(batch: Batch) -> dict[str, float]:
    """Figures of one batch."""
    complete_s = batch.arrivals_s + batch.times_s.sum(axis=1)
    critical = int(complete_s.argmax())
    end_s = float(complete_s[critical])
    counts, _ = np.histogram(batch.arrivals_s, bins=np.arange(0.0, end_s + BIN_S, BIN_S))
    return {
        "T, s": end_s,
        "time without arrivals, %": 100.0 * float((counts == 0).mean()),
        "arrivals in 10 s at the peak": float(counts.max()),
        "items that reach the GPU, %": 100.0 * float((batch.times_s[:, RUN] > 0).mean()),
        "critical item runs into its timeout, %": 100.0
        * float(batch.times_s[critical, RUN] >= CUDA_STAGES[RUN].timeout_s),
    }


def shapes(seeds: Sequence[int]) -> dict[str, Sample]:
    """The same over seeds; each value is the mean of a seed's batches."""
    found: dict[str, Sample] = {}
    for seed in seeds:
        of_seed = [shape(batch) for batch in cuda_workload(1, BATCHES, CudaLaw(), seed).jobs["job-1"]]
        for name in of_seed[0]:
            mean = sum(one[name] for one in of_seed) / len(of_seed)
            found.setdefault(name, Sample()).values.append(mean)
    return found


def orders(seeds: Sequence[int], law: CudaLaw) -> tuple[Sample, Sample, Sample]:
    """GPUs of two batches in the order of batches, and of arrival; and the second beside the first."""
    ebf, fcfs, ratio = Sample(), Sample(), Sample()
    for seed in seeds:
        few, many = fewest(seed, Order.EBF, law), fewest(seed, Order.FCFS, law)
        ebf.values.append(float(few))
        fcfs.values.append(float(many))
        ratio.values.append(many / few)
    return ebf, fcfs, ratio


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.reward.workload_figures", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 1 on (5)")
    args = parser.parse_args(argv)
    if args.seeds < 2:
        parser.error(f"--seeds {args.seeds}: expected 2 or more, for an interval")
    seeds = range(1, args.seeds + 1)
    found = shapes(seeds)
    sys.stdout.write(table(("a batch", "here"), [(name, str(sample)) for name, sample in found.items()]))
    cases = {
        "as above": TWO,
        "no run times out": CudaLaw(stagger_s=1.0, runaways=0.0),
        "1 % time out": CudaLaw(stagger_s=1.0, runaways=0.01),
        "3 % time out": CudaLaw(stagger_s=1.0, runaways=0.03),
        "half as many items": CudaLaw(stagger_s=1.0, items=1024),
    }
    rows = [(name, *map(str, orders(seeds, law))) for name, law in cases.items()]
    sys.stdout.write("\n" + table(("two batches", "EBF, GPUs", "FCFS, GPUs", "FCFS / EBF"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
