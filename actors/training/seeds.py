"""Seeds of requests, derived from names.

A request has the same seed in every run of the same job seed.
"""

import hashlib


def request_seed(job_seed: int, batch: str, group: int, sample: int) -> int:
    """A 63-bit seed for one sample of one group of a batch."""
    name = f"{job_seed}/{batch}/{group}/{sample}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 1
