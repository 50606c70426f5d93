"""Max-min fair rates of flows that share cards and links.

Owns the progressive filling (Bertsekas, Gallager: Data Networks, section 6.5.2): the resource that can give
its flows least is shared evenly among them, they are done, and the rest is filled in the same way.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Flow = TypeVar("Flow", bound=Hashable)
Resource = TypeVar("Resource", bound=Hashable)

SAME = 1 + 1e-9  # shares that differ by rounding alone are filled at once


def max_min(
    flows: Mapping[Flow, Sequence[Resource]], capacity: Mapping[Resource, float]
) -> dict[Flow, float]:
    """The rate of each flow, in the unit of `capacity`. `flows`: resources of each, at least one."""
    users: dict[Resource, list[Flow]] = {}
    for flow, needs in flows.items():
        for resource in needs:
            users.setdefault(resource, []).append(flow)
    free = {resource: capacity[resource] for resource in users}
    left = {resource: len(using) for resource, using in users.items()}
    rates: dict[Flow, float] = {}
    while len(rates) < len(flows):
        shares = {resource: free[resource] / count for resource, count in left.items() if count}
        least = min(shares.values())
        for resource, share in shares.items():
            if share > least * SAME:
                continue
            for flow in users[resource]:
                if flow in rates:
                    continue
                rates[flow] = least
                for other in flows[flow]:
                    free[other] = max(0.0, free[other] - least)
                    left[other] -= 1
    return rates
