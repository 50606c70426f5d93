"""Shares of hosts in the planned workers of a stage. Pure."""

from collections.abc import Mapping


def shares(planned: int, most: Mapping[str, int], least: Mapping[str, int]) -> dict[str, int]:
    """Workers of each host: as many as planned in all, spread evenly by what each may have.

    Args:
        planned: workers of the stage on all hosts; beyond what these may have, they have their most.
        most: of each host.
        least: of each host, which it keeps whatever is planned; one that is not named keeps none.
    """
    found = {host: min(least.get(host, 0), cap) for host, cap in most.items()}
    left = min(planned, sum(most.values())) - sum(found.values())
    while left > 0:
        able = [host for host in most if found[host] < most[host]]
        fewest = min(able, key=lambda host: found[host] / most[host])
        found[fewest] += 1
        left -= 1
    return found
